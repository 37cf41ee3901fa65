"""What Specgate adds to the scheduler: plan, switch and counts, without vLLM's part of it."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.interface import NONE, PLAIN, ProposerCounts, SpecDecodeParams, SpecMethod
from engine_adapter.policies.fixed import FixedPolicy
from engine_adapter.vllm_engine.containment import MAX_FAULTS, Quarantine
from engine_adapter.vllm_engine.extension import to_extra_args
from engine_adapter.vllm_engine.stats import DraftReport, StepTally, decode_request, decode_step

pytestmark = pytest.mark.vllm

NGRAM, DRAFT = SpecMethod("ngram", 5), SpecMethod("small", 4)
CONTEXT = 100


@pytest.fixture
def module() -> Any:
    """The scheduler's module; its import takes vLLM's."""
    return import_module("engine_adapter.vllm_engine.scheduler")


@pytest.fixture
def scheduler(module: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A scheduler with Specgate's state alone; vLLM's methods are replaced by what they do."""
    base = module.SpecgateScheduler.__mro__[1]

    def schedule(self: Any) -> Any:
        return self.next_output

    def update_request(self: Any, request: Any, tokens: list[int]) -> tuple[list[int], bool]:
        request.num_output_tokens += len(tokens)
        request.num_tokens += len(tokens)
        return tokens, False

    monkeypatch.setattr(base, "schedule", schedule)
    monkeypatch.setattr(
        base, "add_request", lambda self, r: self.requests.update({r.request_id: r})
    )
    monkeypatch.setattr(base, "_free_request", lambda self, request: ({"theirs": 1}, "ec"))
    monkeypatch.setattr(base, "make_spec_decoding_stats", lambda self, *a, **k: "vllm's")
    monkeypatch.setattr(base, "_update_request_with_output", update_request)
    made = object.__new__(module.SpecgateScheduler)
    made.max_model_len = CONTEXT
    made.requests = {}
    made._policy = FixedPolicy()
    made._quarantine = Quarantine()
    made._rows = {}
    made._drafting = 0
    made._swept = (0, PLAIN)
    made._step = StepTally()
    made._step_began = 0.0
    made._draft_report = None
    return made


def request(
    request_id: str,
    method: SpecMethod = NGRAM,
    *,
    pinned: bool = False,
    generation: int = 0,
    prompt: int = 10,
    output: int = 0,
    max_tokens: int = 50,
    stop: list[str] | None = None,
) -> Any:
    params = SpecDecodeParams(method, pinned, generation)
    return SimpleNamespace(
        request_id=request_id,
        sampling_params=SimpleNamespace(extra_args=to_extra_args(params), stop=stop or []),
        num_tokens=prompt + output,
        num_output_tokens=output,
        max_tokens=max_tokens,
        is_prefill_chunk=False,
    )


def admit(scheduler: Any, *requests: Any) -> None:
    for each in requests:
        scheduler.add_request(each)


def step(
    scheduler: Any, *request_ids: str, drafts: dict[str, int] | None = None, new: int = 0
) -> Any:
    """Schedules a step in which the drafts of `drafts` are verified."""
    drafts = drafts or {}
    scheduled = {name: 1 + drafts.get(name, 0) for name in request_ids}
    scheduler.next_output = SimpleNamespace(
        scheduled_spec_decode_tokens={name: [0] * count for name, count in drafts.items()},
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_new_reqs=[None] * new,
    )
    return scheduler.schedule()


def verify(scheduler: Any, name: str, drafted: int, accepted: int) -> None:
    """What vLLM calls when a row's drafts were verified and its tokens are known."""
    if drafted:
        scheduler.make_spec_decoding_stats(
            None,
            num_draft_tokens=drafted,
            num_accepted_tokens=accepted,
            num_invalid_spec_tokens=None,
            request_id=name,
        )
    scheduler._update_request_with_output(scheduler.requests[name], [7] * (accepted + 1))


def counts_of(scheduler: Any, name: str) -> Any:
    stats = decode_request(scheduler._rows[name].to_wire())
    assert stats is not None
    return stats


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
    scheduler.switch(DRAFT, 1)
    plan = step(scheduler, "free", "pinned", "plain", "pinned plain").specgate_plan
    assert plan == {"free": DRAFT, "pinned": NGRAM, "plain": DRAFT}


def test_a_switch_to_none_and_back_is_followed(scheduler: Any) -> None:
    admit(scheduler, request("r"))
    scheduler.switch(PLAIN, 1)
    assert step(scheduler, "r").specgate_plan == {}
    scheduler.switch(NGRAM, 2)
    assert step(scheduler, "r").specgate_plan == {"r": NGRAM}


@pytest.mark.parametrize(
    ("generation", "pinned", "expected"),
    [(4, False, DRAFT), (5, False, NGRAM), (6, False, NGRAM), (4, True, NGRAM)],
)
def test_a_request_that_a_switch_overtook_on_its_way_takes_the_new_method(
    scheduler: Any, generation: int, pinned: bool, expected: SpecMethod
) -> None:
    scheduler.switch(DRAFT, 5)
    admit(scheduler, request("r", NGRAM, pinned=pinned, generation=generation))
    assert step(scheduler, "r").specgate_plan == {"r": expected}


def test_a_request_overtaken_by_a_switch_to_none_is_not_drafted_for(scheduler: Any) -> None:
    scheduler.switch(PLAIN, 5)
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
    scheduler.switch(DRAFT, 1)
    admit(scheduler, request("r"))
    assert scheduler._drafting == 1
    assert step(scheduler, "r").specgate_plan == {"r": DRAFT}


def test_the_utility_call_switches(module: Any, scheduler: Any) -> None:
    admit(scheduler, request("r"))
    core = SimpleNamespace(scheduler=scheduler)
    module.compat.EngineCore.specgate_switch(core, "small", 4, 3)
    assert scheduler._rows["r"].method == DRAFT
    assert scheduler._swept == (3, DRAFT)


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
    scheduler.switch(DRAFT, 1)
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
    scheduler.switch(PLAIN, 1)
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
    module: Any, scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The front end finds a stop string itself: any output may be the last that it reads."""
    admit(scheduler, request("plain"), request("stops", stop=["END"]))
    outputs = [
        SimpleNamespace(request_id=name, kv_transfer_params=None)
        for name in ("plain", "stops", "gone")
    ]
    base = module.SpecgateScheduler.__mro__[1]
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
    module: Any, scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = module.SpecgateScheduler.__mro__[1]
    monkeypatch.setattr(base, "make_stats", lambda self: SimpleNamespace(kv_connector_stats=None))
    assert scheduler.make_stats().kv_connector_stats is None, "no step has run yet"
    admit(scheduler, request("r"))
    step(scheduler, "r")
    report, _ = decode_step(scheduler.make_stats().kv_connector_stats)
    assert report.kind == "decode"
    assert 0 < report.seconds < 60


def test_without_vllms_statistics_there_is_no_report(
    module: Any, scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.SpecgateScheduler.__mro__[1], "make_stats", lambda self: None)
    assert scheduler.make_stats() is None
