"""What Specgate's scheduler counts of each request and step, and how that is sent."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.counts import ProposerCounts
from engine_adapter.types import NONE, PLAIN, Switch
from engine_adapter.vllm_engine.core.counting import StepTally
from engine_adapter.vllm_engine.wire import decode_request, decode_step
from tests.engine_adapter.vllm_engine.support.bare_scheduler import (
    DRAFT,
    admit,
    counts_of,
    request,
    step,
    verify,
)

pytestmark = pytest.mark.vllm


# -- counting --------------------------------------------------------------------------------


def test_what_was_verified_is_credited_to_who_drafted_it(scheduler: Any) -> None:
    admit(scheduler, request("r"))
    step(scheduler, "r")
    verify(scheduler, "r", drafted=0, accepted=0)
    step(scheduler, "r", drafts={"r": 5})
    verify(scheduler, "r", drafted=5, accepted=3)
    stats = counts_of(scheduler, "r")
    assert stats.by_proposer == {"ngram": ProposerCounts(1, 5, 3, (1, 1, 1), 4)}
    assert (stats.decode_steps, stats.decode_tokens) == (1, 4)


def test_a_switch_between_drafting_and_verification_still_credits_the_drafter(
    scheduler: Any,
) -> None:
    admit(scheduler, request("r"))
    step(scheduler, "r")  # ngram is planned to draft at its end
    verify(scheduler, "r", drafted=0, accepted=0)
    scheduler.switch(Switch(DRAFT, 1))
    step(scheduler, "r", drafts={"r": 5})  # verifies ngram's, plans the draft model
    verify(scheduler, "r", drafted=5, accepted=2)
    step(scheduler, "r", drafts={"r": 4})
    verify(scheduler, "r", drafted=4, accepted=4)
    assert counts_of(scheduler, "r").by_proposer == {
        "ngram": ProposerCounts(1, 5, 2, (1, 1), 3),
        "small": ProposerCounts(1, 4, 4, (1, 1, 1, 1), 5),
    }


def test_a_switch_to_none_still_credits_the_drafter(scheduler: Any) -> None:
    admit(scheduler, request("r"))
    step(scheduler, "r")
    verify(scheduler, "r", drafted=0, accepted=0)
    scheduler.switch(Switch(PLAIN, 1))
    step(scheduler, "r", drafts={"r": 5})
    verify(scheduler, "r", drafted=5, accepted=1)
    step(scheduler, "r")
    verify(scheduler, "r", drafted=0, accepted=0)
    stats = counts_of(scheduler, "r")
    assert stats.by_proposer == {"ngram": ProposerCounts(1, 5, 1, (1,), 2)}
    assert (stats.decode_steps, stats.decode_tokens) == (2, 3)


def test_a_step_in_which_the_drafter_had_nothing_is_not_its_step(scheduler: Any) -> None:
    admit(scheduler, request("r"))
    for _ in range(3):
        step(scheduler, "r")
        verify(scheduler, "r", drafted=0, accepted=0)
    assert counts_of(scheduler, "r").by_proposer == {}
    assert scheduler._step.tallies[NONE].wire[3] == 3


def test_rows_of_one_step_are_counted_apart_and_summed(scheduler: Any) -> None:
    admit(scheduler, request("a"), request("b", DRAFT), request("c", PLAIN), request("d"))
    step(scheduler, *"abcd")
    scheduler._step = StepTally("verify")
    step(scheduler, *"abcd", drafts={"a": 5, "b": 4, "d": 3})
    for name, drafted, accepted in (("a", 5, 2), ("b", 4, 0), ("c", 0, 0), ("d", 3, 3)):
        verify(scheduler, name, drafted, accepted)
    report, _ = decode_step(scheduler._step.to_wire(0.1, None))
    assert report.verified == {
        "ngram": ProposerCounts(2, 8, 5, (2, 2, 1), 7),
        "small": ProposerCounts(1, 4, 0, (), 1),
        NONE: ProposerCounts(emitted=1),
    }
    assert counts_of(scheduler, "a").by_proposer["ngram"].accepted == 2
    assert counts_of(scheduler, "d").by_proposer["ngram"].accepted == 3


def test_vllms_own_statistics_pass_through(scheduler: Any) -> None:
    admit(scheduler, request("r"))
    step(scheduler, "r", drafts={"r": 2})
    made = scheduler.make_spec_decoding_stats(
        None,
        num_draft_tokens=2,
        num_accepted_tokens=0,
        num_invalid_spec_tokens=None,
        request_id="r",
    )
    assert made == "vllm's"


def test_a_request_that_ends_takes_its_statistics_along(scheduler: Any) -> None:
    admit(scheduler, request("r"))
    for drafted in (0, 5):
        step(scheduler, "r", drafts={"r": drafted} if drafted else {})
        verify(scheduler, "r", drafted=drafted, accepted=drafted)
    wire, ec = scheduler._free_request(scheduler.requests["r"])
    stats = decode_request(wire)
    assert stats is not None
    assert stats.by_proposer["ngram"].accepted == 5
    assert ec == "ec"
    assert scheduler._rows == {}


def test_a_request_that_was_never_admitted_ends_without_statistics(scheduler: Any) -> None:
    assert scheduler._free_request(request("unknown")) == (None, "ec")


def test_requests_with_stop_strings_stream_their_statistics(
    scheduler_module: Any, scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The front end finds a stop string itself: any output may be the last that it reads."""
    admit(scheduler, request("plain"), request("stops", stop=["END"]))
    outputs = [
        SimpleNamespace(request_id=name, kv_transfer_params=None)
        for name in ("plain", "stops", "gone")
    ]
    base = scheduler_module.SpecgateScheduler.__mro__[1]
    answer = {0: SimpleNamespace(outputs=outputs)}
    monkeypatch.setattr(base, "update_from_output", lambda self, *a: answer)
    scheduler.update_from_output(step(scheduler, "plain", "stops"), SimpleNamespace())
    assert [output.kv_transfer_params is not None for output in outputs] == [False, True, False]


# -- kinds of step ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drafts", "new", "extra", "kind"),
    [
        ({}, 0, 0, "decode"),
        ({"a": 3}, 0, 0, "verify"),
        ({"a": 3, "b": 5}, 0, 0, "verify"),
        ({}, 1, 0, "prefill"),
        ({"a": 3}, 1, 0, "prefill"),
        ({}, 0, 7, "prefill"),
        ({"a": 3}, 0, 1, "prefill"),
    ],
)
def test_a_steps_kind_is_what_its_rows_did(
    scheduler: Any, drafts: dict[str, int], new: int, extra: int, kind: str
) -> None:
    admit(scheduler, request("a"), request("b"))
    output = step(scheduler, "a", "b", drafts=drafts, new=new)
    output.num_scheduled_tokens["b"] += extra
    output.total_num_scheduled_tokens += extra
    assert scheduler._kind(output) == kind


def test_a_steps_report_rides_on_vllms_statistics(
    scheduler_module: Any, scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = scheduler_module.SpecgateScheduler.__mro__[1]
    monkeypatch.setattr(base, "make_stats", lambda self: SimpleNamespace(kv_connector_stats=None))
    assert scheduler.make_stats().kv_connector_stats is None, "no step has run yet"
    admit(scheduler, request("r"))
    step(scheduler, "r")
    report, _ = decode_step(scheduler.make_stats().kv_connector_stats)
    assert report.kind == "decode"
    assert 0 < report.seconds < 60


def test_without_vllms_statistics_there_is_no_report(
    scheduler_module: Any, scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        scheduler_module.SpecgateScheduler.__mro__[1], "make_stats", lambda self: None
    )
    assert scheduler.make_stats() is None
