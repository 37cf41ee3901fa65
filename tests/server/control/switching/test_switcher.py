"""Switches run one at a time, and the published method is the engine's."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from engine_adapter.seam.errors import EngineDead
from engine_adapter.seam.types import PLAIN, ProposerInfo, SpecMethod, Switch
from server.control.admin.audit import REMEMBERED, Audit
from server.control.admission.slots import SlotLimits, Slots
from server.control.method_names import LoadedProposers, MethodRequest, SelectionError
from server.control.records import SpecMethodBody
from server.control.switching.errors import SwitchInProgress
from server.control.switching.switcher import Switcher
from server.control.types import SwitchMode
from server.telemetry.metrics import Metrics
from tests.server.gateway import eventually

CATALOG = LoadedProposers(
    (ProposerInfo("ngram", "ngram", None, 5), ProposerInfo("draft", "draft_model", "/d", 4)),
    primary="draft",
)
NGRAM = MethodRequest("ngram", None, True)
NONE = SpecMethodBody("none", 0)


class RecordingEngine:
    """The part of `Engine` that a switcher calls: it can be delayed, and it can fail."""

    def __init__(self) -> None:
        self.calls: list[tuple[SpecMethod, int, bool]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.failure: EngineDead | None = None
        self.during: Callable[[], None] = lambda: None

    async def switch(self, switch: Switch, *, running: bool) -> None:
        self.calls.append((switch.spec_method, switch.epoch, running))
        self.during()
        await self.gate.wait()
        if self.error is not None:
            raise self.error


class Harness:
    """A switcher on a recording engine, with its own registry."""

    def __init__(self, initial: str = "none") -> None:
        self.engine = RecordingEngine()
        self.registry = CollectorRegistry()
        self.catalog = CATALOG
        engine: Any = self.engine
        self.audit = Audit()
        self.slots = Slots(SlotLimits(8, 8, 0, 4, 512))
        self.switcher = Switcher(
            engine, lambda: self.catalog, Metrics(self.registry), initial, self.audit, self.slots
        )

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.mark.parametrize(
    ("initial", "expected"),
    [("none", PLAIN), ("ngram", SpecMethod("ngram", 5)), ("primary", SpecMethod("draft", 4))],
)
async def test_the_initial_method_is_active_at_start(initial: str, expected: SpecMethod) -> None:
    active = Harness(initial).switcher.active
    assert (active.spec_method, active.name, active.epoch) == (expected, expected.proposer, 0)


async def test_an_unknown_initial_method_is_refused() -> None:
    with pytest.raises(SelectionError) as caught:
        Harness("backup")
    assert caught.value.param == "spec_method"


@pytest.mark.parametrize(("mode", "running"), [("immediate", True), ("new_requests", False)])
async def test_a_switch_reaches_the_engine_and_is_published(
    harness: Harness, mode: str, running: bool
) -> None:
    result = await harness.switcher.switch(NGRAM, mode)
    assert harness.engine.calls == [(SpecMethod("ngram", 5), 1, running)]
    assert (result.previous, result.active) == (NONE, SpecMethodBody("ngram", 5))
    assert (result.mode, result.generation) == (mode, 1)
    assert harness.switcher.active.spec_method == SpecMethod("ngram", 5)
    assert harness.switcher.active.epoch == 1


async def test_the_engine_has_a_generation_before_a_wantedcan(harness: Harness) -> None:
    seen: list[int] = []
    harness.engine.during = lambda: seen.append(harness.switcher.active.epoch)
    await harness.switcher.switch(NGRAM)
    await harness.switcher.switch(MethodRequest(None, None, True))
    assert seen == [0, 1]


async def test_of_fifty_concurrent_switches_one_succeeds(harness: Harness) -> None:
    harness.engine.gate.clear()
    switches = [asyncio.create_task(harness.switcher.switch(NGRAM)) for _ in range(50)]
    await asyncio.sleep(0)
    harness.engine.gate.set()
    results = await asyncio.gather(*switches, return_exceptions=True)
    refused = [r for r in results if isinstance(r, SwitchInProgress)]
    assert len(refused) == 49
    assert len(harness.engine.calls) == 1
    assert harness.switcher.active.epoch == 1
    labels = {"mode": "immediate", "outcome": "refused"}
    assert harness.value("specgate_spec_method_switches_total", **labels) == 49


async def test_consecutive_switches_have_growing_generations(harness: Harness) -> None:
    for i in range(50):
        await harness.switcher.switch(NGRAM if i % 2 else MethodRequest("draft", 1 + i % 4, True))
    assert [generation for _, generation, _ in harness.engine.calls] == list(range(1, 51))
    assert harness.switcher.active.epoch == 50


async def test_a_failed_switch_keeps_the_method_and_uses_its_generation(harness: Harness) -> None:
    harness.engine.error = EngineDead("gone")
    with pytest.raises(EngineDead):
        await harness.switcher.switch(NGRAM)
    # The engine may have applied generation 1, so later requests are not older than it.
    assert (harness.switcher.active.spec_method, harness.switcher.active.epoch) == (PLAIN, 1)
    assert harness.value("specgate_spec_method_info", spec_method="none") == 1
    assert harness.value("specgate_spec_method_info", spec_method="ngram") is None
    harness.engine.error = None
    assert (await harness.switcher.switch(NGRAM)).generation == 2


@pytest.mark.parametrize("mode", SwitchMode)
async def test_a_switch_on_a_dead_engine_fails_and_is_recorded(harness: Harness, mode: str) -> None:
    harness.engine.failure = EngineDead("gone", 3.0)
    with harness.switcher.in_flight.track("none"), pytest.raises(EngineDead, match="gone"):
        await harness.switcher.switch(NGRAM, mode, "nightly")
    assert harness.engine.calls == []
    (record,) = harness.audit.switches
    assert (record.outcome, record.error, record.generation) == ("failed", "gone", None)
    assert (harness.switcher.active.spec_method, harness.switcher.active.epoch) == (PLAIN, 0)
    assert harness.slots.is_open
    harness.engine.failure = None
    assert (await harness.switcher.switch(NGRAM)).generation == 1


async def test_cancelling_the_caller_does_not_stop_a_swap(harness: Harness) -> None:
    harness.engine.gate.clear()
    caller = asyncio.create_task(harness.switcher.switch(NGRAM))
    await eventually(lambda: harness.engine.calls != [])
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert harness.switcher.active.name == "none"
    harness.engine.gate.set()
    await eventually(lambda: harness.switcher.active.name == "ngram")
    assert len(harness.engine.calls) == 1


@pytest.mark.parametrize(
    ("wanted", "mode", "param"),
    [
        (MethodRequest("unknown", None, True), "immediate", "spec_decode.proposer"),
        (MethodRequest("ngram", 6, True), "immediate", "spec_decode.num_speculative_tokens"),
        (NGRAM, "later", "mode"),
        (NGRAM, "", "mode"),
    ],
)
async def test_an_invalid_switch_changes_nothing(
    harness: Harness, wanted: MethodRequest, mode: str, param: str
) -> None:
    with pytest.raises(SelectionError) as caught:
        await harness.switcher.switch(wanted, mode)
    assert caught.value.param == param
    assert harness.engine.calls == []
    assert harness.audit.switches == ()


async def test_the_error_of_an_unknown_mode_lists_the_modes(harness: Harness) -> None:
    with pytest.raises(SelectionError, match="immediate, new_requests, drain"):
        await harness.switcher.switch(NGRAM, "later")


async def test_a_proposer_that_is_unloaded_during_the_drain_is_not_switched_to(
    harness: Harness,
) -> None:
    with harness.switcher.in_flight.track("none"):
        switching = asyncio.create_task(harness.switcher.switch(NGRAM, SwitchMode.DRAIN))
        await eventually(lambda: harness.switcher.drain is not None)
        harness.catalog = replace(CATALOG, proposers=CATALOG.proposers[1:])
    with pytest.raises(SelectionError, match="'ngram' was unloaded"):
        await switching
    assert harness.engine.calls == []
    assert not harness.switcher.busy
    assert harness.slots.is_open


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("immediate", {"ngram": 2, "draft": 1}), ("new_requests", {"none": 2, "draft": 1})],
)
async def test_an_immediate_switch_moves_unpinned_requests(
    harness: Harness, mode: str, expected: dict[str, int]
) -> None:
    track = harness.switcher.in_flight.track
    with track("none"), track("none"), track("draft", pinned=True):
        result = await harness.switcher.switch(NGRAM, mode)
        assert result.in_flight == 3
        assert harness.switcher.in_flight.by_proposer == expected


async def test_the_audit_holds_the_last_switches_newest_first(harness: Harness) -> None:
    await harness.switcher.switch(NGRAM, "new_requests", "nightly batch")
    harness.engine.error = EngineDead("gone")
    with pytest.raises(EngineDead):
        await harness.switcher.switch(MethodRequest("draft", 2, True))
    failed, switched = harness.audit.switches
    assert (switched.previous, switched.to) == (NONE, SpecMethodBody("ngram", 5))
    assert (switched.outcome, switched.reason, switched.error) == (
        "switched",
        "nightly batch",
        None,
    )
    assert (failed.previous, failed.to) == (SpecMethodBody("ngram", 5), SpecMethodBody("draft", 2))
    assert (failed.outcome, failed.error, failed.generation) == ("failed", "gone", 2)


async def test_the_audit_is_bounded(harness: Harness) -> None:
    for _ in range(REMEMBERED + 5):
        await harness.switcher.switch(NGRAM)
    assert len(harness.audit.switches) == REMEMBERED
    assert harness.audit.switches[0].generation == REMEMBERED + 5


async def test_switches_are_counted_and_timed(harness: Harness) -> None:
    await harness.switcher.switch(NGRAM)
    name = "specgate_spec_method_switches_total"
    assert harness.value(name, mode="immediate", outcome="switched") == 1
    assert harness.value(name, mode="new_requests", outcome="switched") == 0
    assert harness.value("specgate_spec_method_switch_seconds_count", mode="immediate") == 1
    assert harness.value("specgate_spec_method_info", spec_method="ngram") == 1
    assert harness.value("specgate_spec_method_info", spec_method="none") is None
