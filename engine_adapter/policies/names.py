"""The names of the policies: what requests, switches and settings may write."""

AUTO = "auto"
LOAD = "load"
QUALITY_FIRST = "quality_first"
LATENCY_FIRST = "latency_first"
PER_REQUEST = "per_request"

POLICY_NAMES = (AUTO, LOAD, QUALITY_FIRST, LATENCY_FIRST, PER_REQUEST)
"""Every policy."""

GOODPUT = "goodput"
"""Another name of `auto`, after its algorithm. It is accepted, and never shown."""


def policy_name(name: str) -> str | None:
    """The policy that `name` stands for; `None` if it is not the name of a policy."""
    if name == GOODPUT:
        return AUTO
    return name if name in POLICY_NAMES else None
