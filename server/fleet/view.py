"""What the replicas of a fleet have, side by side."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from server.fleet.http_replica import HttpReplica
from server.fleet.replica import ReplicaRefused, ReplicaUnreachable

VIEW_ANSWER_S = 10.0
"""How long a view of the fleet waits for the method of a replica, in seconds."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica beside the others.

    Attributes:
        spec_method: the answer of `GET /v1/spec_method`; `None` without one.
        error: why there is none.
        differs: it does not answer, or has another method or generation than most.
    """

    replica: str
    spec_method: dict[str, Any] | None
    error: str | None
    differs: bool = False

    @property
    def has(self) -> tuple[str, int, int] | None:
        """What must be the same everywhere: method, k and fleet generation."""
        one = self.spec_method
        if one is None:
            return None
        return one["spec_method"], one["num_speculative_tokens"], one["fleet"]["generation"]


async def view(replicas: Sequence[HttpReplica]) -> list[ReplicaView]:
    """Asks every replica, and marks those that differ."""
    found = await asyncio.gather(*map(_ask, replicas))
    most = common(found)
    return [replace(one, differs=one.has is None or one.has != most) for one in found]


def common(views: Sequence[ReplicaView]) -> tuple[str, int, int] | None:
    """What most replicas have; of two that are as frequent, the one of the higher generation."""
    counts = Counter(one.has for one in views if one.has is not None)
    return max(counts, key=lambda has: (counts[has], has[2]), default=None)


async def _ask(replica: HttpReplica) -> ReplicaView:
    try:
        async with asyncio.timeout(VIEW_ANSWER_S):
            return ReplicaView(replica.name, await replica.spec_method(), None)
    except (ReplicaRefused, ReplicaUnreachable) as error:
        return ReplicaView(replica.name, None, str(error))
    except TimeoutError:
        return ReplicaView(replica.name, None, f"no answer within {VIEW_ANSWER_S:g} s")
