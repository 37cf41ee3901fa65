"""What the replicas of a fleet have, side by side."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from server.fleet.http_fleet import HttpFleet, SpecMethodAnswer
from server.fleet.replica import Obstacle

VIEW_ANSWER_S = 10.0
"""How long a view of the fleet waits for the method of a replica, in seconds."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica beside the others.

    Attributes:
        spec_method: the answer of `GET /v1/spec_method`; `None` without one.
        error: why there is none.
        method_key: what must be the same everywhere: method, k and fleet generation.
        differs: it does not answer, or has something else than most.
    """

    replica: str
    spec_method: dict[str, Any] | None
    error: str | None
    method_key: tuple[str, int, int] | None
    differs: bool = False


async def view(fleet: HttpFleet) -> list[ReplicaView]:
    """Asks every replica, and marks those that differ."""
    answers = await fleet.spec_methods(VIEW_ANSWER_S)
    views = [_view(replica, answer) for replica, answer in answers.items()]
    majority = common(views)
    return [
        replace(
            replica_view,
            differs=replica_view.method_key is None or replica_view.method_key != majority,
        )
        for replica_view in views
    ]


def common(views: Sequence[ReplicaView]) -> tuple[str, int, int] | None:
    """What most replicas have; of two that are as frequent, the one of the higher generation."""
    counts = Counter(replica.method_key for replica in views if replica.method_key is not None)
    return max(counts, key=lambda method_key: (counts[method_key], method_key[2]), default=None)


def _view(replica: str, answer: SpecMethodAnswer | Obstacle) -> ReplicaView:
    if isinstance(answer, Obstacle):
        return ReplicaView(replica, None, answer.message, None)
    method_key = (answer.spec_method, answer.num_speculative_tokens, answer.fleet.generation)
    return ReplicaView(replica, answer.model_dump(mode="json"), None, method_key)
