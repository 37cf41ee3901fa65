"""Two switches at one replica: none takes what the other did for its own."""

from server.control.records import SpecMethodBody
from server.fleet.coordinator import switch_fleet
from server.fleet.local import LocalReplica
from server.fleet.replica import FleetOutcome, Order, ReplicaOutcome
from tests.server.fleet.scripted import ScriptedReplica, refuse
from tests.server.gateway import Gateway, eventually

LONG_S = 300.0
LOAD = {"load": {"disable_by_batch_size": 3}}


async def test_a_replica_that_another_switch_has_reserved_does_not_count_as_restored(
    gateway: Gateway,
) -> None:
    """It has the policies of the first switch, and the method is the same before and after."""
    member = gateway.runtime.fleet
    other = ScriptedReplica("other", to=SpecMethodBody("draft", 4))

    async def refuse_late() -> None:
        await eventually(lambda: member.state().policies == LOAD)
        member.prepare("another", Order("ngram"), LONG_S)
        await refuse()

    other.on_commit = refuse_late
    order = Order("draft", policies=LOAD)
    report = await switch_fleet(
        [LocalReplica("one", member), other], order, lease_s=LONG_S, call_s=LONG_S
    )
    assert member.state().policies == LOAD
    assert (report.outcome, report.unknown) == (FleetOutcome.PARTIAL, ("one",))
    assert report.replicas[0].error == (
        "keeps what it got with generation 1: another switch has begun there"
    )
    assert report.replicas[1].outcome is ReplicaOutcome.REFUSED
