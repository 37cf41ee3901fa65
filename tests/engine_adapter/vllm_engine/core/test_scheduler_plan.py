"""Whom Specgate's scheduler plans to draft for each row, and how a switch moves the rows."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.types import PLAIN, SpecMethod, Switch
from engine_adapter.vllm_engine.core.quarantine import MAX_FAULTS
from engine_adapter.vllm_engine.wire import DraftReport, decode_step
from tests.engine_adapter.vllm_engine.support.bare_scheduler import (
    DRAFT,
    NGRAM,
    admit,
    request,
    step,
)

pytestmark = pytest.mark.vllm


# -- room ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "output", "max_tokens", "room"),
    [
        (10, 0, 50, 48),  # 49 tokens may follow the first one: 48 drafts and a bonus token
        (10, 47, 50, 1),
        (10, 48, 50, 0),  # one token may follow, and the target gives it without drafts
        (10, 49, 50, 0),
        (90, 0, 50, 8),  # 91 tokens after the step; of 9 positions left the last is the bonus's
        (97, 0, 50, 1),
        (98, 0, 50, 0),
        (99, 0, 50, 0),
        (1, 0, 1, 0),
    ],
)
def test_room_is_what_could_still_be_emitted(
    scheduler: Any, prompt: int, output: int, max_tokens: int, room: int
) -> None:
    asked = request("r", prompt=prompt, output=output, max_tokens=max_tokens)
    assert scheduler._room(asked) == room


# -- plan ------------------------------------------------------------------------------------


def test_the_plan_gives_each_row_its_own_method(scheduler: Any) -> None:
    admit(scheduler, request("a"), request("b", DRAFT), request("c", PLAIN))
    assert step(scheduler, "a", "b", "c").specgate_plan == {"a": NGRAM, "b": DRAFT}


def test_only_rows_of_the_step_are_planned(scheduler: Any) -> None:
    admit(scheduler, request("a"), request("waits"))
    assert set(step(scheduler, "a").specgate_plan) == {"a"}


def test_k_is_cut_to_the_room_and_a_row_without_room_is_left_out(scheduler: Any) -> None:
    admit(scheduler, request("tight", output=46), request("full", output=48))
    assert step(scheduler, "tight", "full").specgate_plan == {"tight": SpecMethod("ngram", 2)}


def test_a_row_in_mid_prompt_is_planned_to_be_read(scheduler: Any) -> None:
    chunked = request("r", DRAFT)
    chunked.is_prefill_chunk = True
    admit(scheduler, chunked)
    assert step(scheduler, "r").specgate_plan == {"r": SpecMethod("small", 0)}


def test_where_nobody_drafts_the_plan_is_empty(scheduler: Any) -> None:
    admit(scheduler, request("a", PLAIN), request("b", PLAIN))
    assert step(scheduler, "a", "b").specgate_plan == {}


def test_planning_resumes_when_a_drafting_request_comes_and_ends_when_it_goes(
    scheduler: Any,
) -> None:
    admit(scheduler, request("a", PLAIN), request("b"))
    assert step(scheduler, "a", "b").specgate_plan
    scheduler._free_request(scheduler.requests["b"])
    assert scheduler._drafting == 0
    assert step(scheduler, "a").specgate_plan == {}


def fault(scheduler: Any, monkeypatch: pytest.MonkeyPatch, *names: str) -> Any:
    """The outputs of a step in which the proposers failed come back; the step's report."""
    base = scheduler.__class__.__mro__[1]
    monkeypatch.setattr(base, "update_from_output", lambda *args: {}, raising=False)
    output = step(scheduler)
    result = SimpleNamespace(specgate_report=DraftReport(faults=dict.fromkeys(names, "broken")))
    scheduler.update_from_output(output, result)
    report, _ = decode_step(scheduler._step.to_wire(0.1, scheduler._draft_report))
    return report


def test_a_proposer_that_fails_again_and_again_is_planned_for_nobody(
    scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit(scheduler, request("a"), request("b", DRAFT))
    for _ in range(MAX_FAULTS - 1):
        report = fault(scheduler, monkeypatch, "ngram")
        assert (report.faults, report.quarantined) == ({"ngram": "broken"}, ())
    assert set(step(scheduler, "a", "b").specgate_plan) == {"a", "b"}
    assert fault(scheduler, monkeypatch, "ngram").quarantined == ("ngram",)
    output = step(scheduler, "a", "b")
    assert set(output.specgate_plan) == {"b"}
    assert output.specgate_quarantined == {"ngram"}


# -- switch ----------------------------------------------------------------------------------


def test_a_switch_moves_all_but_the_pinned(scheduler: Any) -> None:
    admit(
        scheduler,
        request("free"),
        request("pinned", pinned=True),
        request("plain", PLAIN),
        request("pinned plain", PLAIN, pinned=True),
    )
    scheduler.switch(Switch(DRAFT, 1))
    plan = step(scheduler, "free", "pinned", "plain", "pinned plain").specgate_plan
    assert plan == {"free": DRAFT, "pinned": NGRAM, "plain": DRAFT}


def test_a_switch_to_none_and_back_is_followed(scheduler: Any) -> None:
    admit(scheduler, request("r"))
    scheduler.switch(Switch(PLAIN, 1))
    assert step(scheduler, "r").specgate_plan == {}
    scheduler.switch(Switch(NGRAM, 2))
    assert step(scheduler, "r").specgate_plan == {"r": NGRAM}


@pytest.mark.parametrize(
    ("generation", "pinned", "expected"),
    [(4, False, DRAFT), (5, False, NGRAM), (6, False, NGRAM), (4, True, NGRAM)],
)
def test_a_request_that_a_switch_overtook_on_its_way_takes_the_new_method(
    scheduler: Any, generation: int, pinned: bool, expected: SpecMethod
) -> None:
    scheduler.switch(Switch(DRAFT, 5))
    admit(scheduler, request("r", NGRAM, pinned=pinned, generation=generation))
    assert step(scheduler, "r").specgate_plan == {"r": expected}


def test_a_request_overtaken_by_a_switch_to_none_is_not_drafted_for(scheduler: Any) -> None:
    scheduler.switch(Switch(PLAIN, 5))
    admit(scheduler, request("r", NGRAM, generation=4))
    assert scheduler._drafting == 0
    assert step(scheduler, "r").specgate_plan == {}


def test_the_number_of_drafting_requests_is_right_whatever_happens(scheduler: Any) -> None:
    live: list[str] = []
    for i in range(60):
        if i % 3 == 2 and live:
            scheduler._free_request(scheduler.requests[live.pop(0)])
        elif i % 7 == 6:
            scheduler.switch([NGRAM, PLAIN, DRAFT][i % 2], i)
        else:
            live.append(f"r{i}")
            admit(
                scheduler, request(f"r{i}", [NGRAM, PLAIN][i % 2], pinned=not i % 5, generation=i)
            )
        drafting = [r for r in scheduler._rows.values() if r.method.num_speculative_tokens]
        assert scheduler._drafting == len(drafting)
        assert set(scheduler._rows) == set(live)


def test_a_request_added_again_keeps_what_it_has(scheduler: Any) -> None:
    """A streaming session sends the same request on; it is one row."""
    admit(scheduler, request("r"))
    scheduler.switch(Switch(DRAFT, 1))
    admit(scheduler, request("r"))
    assert scheduler._drafting == 1
    assert step(scheduler, "r").specgate_plan == {"r": DRAFT}


def test_the_utility_call_switches(scheduler_module: Any, scheduler: Any) -> None:
    admit(scheduler, request("r"))
    core = SimpleNamespace(scheduler=scheduler)
    scheduler_module.compat.EngineCore.specgate_switch(core, "small", 4, 3)
    assert scheduler._rows["r"].method == DRAFT
    assert scheduler._swept == (3, DRAFT)
