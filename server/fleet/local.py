"""A replica in the process of the one who asks."""

from collections.abc import Iterator
from contextlib import contextmanager

from engine_adapter.errors import EngineError
from server.control.records import SwitchResult
from server.control.refusals import REFUSALS, to_refusal
from server.control.types import SERVER, Caller
from server.fleet.member import Member
from server.fleet.replica import Order, Prepared, ReplicaRefused, ReplicaState


class LocalReplica:
    """`replica.Replica` over a `Member`. Lives on the member's event loop.

    Args:
        caller: the origin of its switches, for the audit.
    """

    def __init__(self, name: str, member: Member, caller: Caller = SERVER) -> None:
        self._name = name
        self._member = member
        self._caller = caller

    @property
    def name(self) -> str:
        """How reports name it."""
        return self._name

    async def prepare(self, switch_id: str, order: Order, lease_s: float) -> Prepared:
        """See `replica.Replica`."""
        with _refusals():
            return self._member.prepare(switch_id, order, lease_s, self._caller)

    async def commit(self, switch_id: str, generation: int) -> SwitchResult:
        """See `replica.Replica`."""
        with _refusals():
            return await self._member.commit(switch_id, generation)

    async def rollback(self, switch_id: str, generation: int | None) -> ReplicaState:
        """See `replica.Replica`."""
        with _refusals():
            return await self._member.rollback(switch_id, generation, self._caller)

    async def state(self) -> ReplicaState:
        """See `replica.Replica`."""
        return self._member.state()


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (*REFUSALS, EngineError) as error:
        refusal = to_refusal(error)
        raise ReplicaRefused(refusal.message, refusal.code) from None
