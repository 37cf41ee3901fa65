"""The names of the policies: what requests, switches and settings may write."""

GOODPUT = "goodput"
LOAD = "load"
QUALITY_FIRST = "quality_first"
LATENCY_FIRST = "latency_first"
PER_REQUEST = "per_request"

POLICY_NAMES = (GOODPUT, LOAD, QUALITY_FIRST, LATENCY_FIRST, PER_REQUEST)
"""Every policy."""

AUTO = "auto"
"""Another name of the default policy."""

DEFAULT_POLICY = GOODPUT


def policy_name(name: str) -> str | None:
    """The policy that `name` stands for; `None` if it is not the name of a policy."""
    if name == AUTO:
        return DEFAULT_POLICY
    return name if name in POLICY_NAMES else None
