"""The plain types of speculation control: modes, outcomes and callers.

Nothing else of `server` is imported here, so that request bodies, metrics and authentication can
use them without the switcher, the slots or the audit.
"""

from dataclasses import dataclass
from enum import StrEnum

DRAIN_TIMEOUT_S = 30.0
"""How long a drain waits by default, in seconds."""

ABORT_S = 5.0
"""How long a drain waits, after its limit, for the end of the requests that it aborts then, in
seconds."""

MAX_DRAIN_TIMEOUT_S = 3600.0
"""The longest that a drain may wait, in seconds. New requests wait in the queue meanwhile."""


@dataclass(frozen=True, slots=True, order=True)
class FleetRank:
    """The place of a fleet's desired state among all: by generation, then by content.

    Attributes:
        generation: grows with every switch of the fleet; 0 before the first.
        content: the state as text, which differs if two coordinators took the same number.
    """

    generation: int
    content: str


NO_FLEET = FleetRank(0, "")
"""Below every state: that of a server that no fleet switch has reached."""


class SwitchMode(StrEnum):
    """Which requests a switch changes.

    `immediate`: running requests change too. `new_requests`: they keep their method. `drain`: they
    finish first, and new requests are held until then.
    """

    IMMEDIATE = "immediate"
    NEW_REQUESTS = "new_requests"
    DRAIN = "drain"


class OnTimeout(StrEnum):
    """What a drain does with the requests that have not ended when its time is over.

    `fail`: nothing, and the switch fails. `move`: those that are neither pinned nor routed by a
    rule change to the new method, as in an immediate switch. `abort`: they end with an error.
    """

    FAIL = "fail"
    MOVE = "move"
    ABORT = "abort"


class SwitchOutcome(StrEnum):
    """The end of a switch.

    `failed`: the engine failed. `refused`: another switch ran, or the proposer is quarantined.
    `timed_out`: admitted requests did not end in time. `abandoned`: the caller disconnected, or
    the server stopped, before the swap.
    """

    SWITCHED = "switched"
    FAILED = "failed"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"
    ABANDONED = "abandoned"


class LoadOutcome(StrEnum):
    """The end of a load or an unload.

    `refused`: it is not possible in the current state, or the operator has not allowed the model.
    `failed`: it was tried, and did not succeed.
    """

    LOADED = "loaded"
    UNLOADED = "unloaded"
    REFUSED = "refused"
    FAILED = "failed"


class PolicyOutcome(StrEnum):
    """The end of a change of policies and routing rules.

    `failed`: the engine failed. `refused`: its record could not be written, and is required.
    """

    CHANGED = "changed"
    REFUSED = "refused"
    FAILED = "failed"


class SelectedBy(StrEnum):
    """What selected a request's method: the request itself, a routing rule, the active method."""

    REQUEST = "request"
    RULE = "rule"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class Caller:
    """The origin of an admin change.

    Attributes:
        who: `key:` and a fingerprint of the admin key, or `loopback` where no key is set.
        peer: the address of the other end of the connection, if it has one.
    """

    who: str
    peer: str | None


SERVER = Caller("server", None)
"""The server itself."""
