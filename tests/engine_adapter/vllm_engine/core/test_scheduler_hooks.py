"""Specgate's hooks over a toy of vLLM's scheduler: what they read of it, and what they hand on."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.policies.contract import NO_PLAN, DraftTime
from engine_adapter.seam.counts import ProposerCounts, StepKind
from engine_adapter.seam.types import NONE, SpecDecodeParams, SpecMethod
from engine_adapter.vllm_engine.compiled_grammars import GrammarStore
from engine_adapter.vllm_engine.core.row_table import RowTable
from engine_adapter.vllm_engine.wire import (
    DraftReport,
    decode_failure,
    decode_request,
    decode_step,
    to_extra_args,
)
from tests.engine_adapter.vllm_engine.support.demo_backend import demo_backend
from tests.engine_adapter.vllm_engine.support.row_steps import (
    CONTEXT,
    NGRAM,
    planner,
    request,
)

pytestmark = pytest.mark.needs_vllm


class ToyScheduler:
    """vLLM's scheduler, as far as the hooks call it; `next_output` is what it schedules."""

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}
        self.running: list[Any] = []
        self.waiting: list[Any] = []
        self.next_output: Any = None
        self.next_results: dict[str, tuple[int, int]] = {}
        self.next_ends: list[Any] = []
        self.log_stats = True

    def add_request(self, request: Any) -> None:
        self.requests[request.request_id] = request

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.requests), 0

    def schedule(self, throttle_prefills: bool = False) -> Any:
        return self.next_output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        outputs = []
        for name, (drafted, accepted) in self.next_results.items():
            if drafted:
                made = self.make_spec_decoding_stats(
                    None,
                    num_draft_tokens=drafted,
                    num_accepted_tokens=accepted,
                    num_invalid_spec_tokens={name: 1, "another": 2},
                    request_id=name,
                )
                assert made == ("vllm's", drafted, accepted)
            outputs.append(self.output_of(name))
            outputs[-1].new_token_ids = [7] * (accepted + 1)
        for ended in self.next_ends:
            assert self._free_request(ended, delay_free_blocks=True) == (None, "ec")
        stats = SimpleNamespace(kv_connector_stats=None) if self.log_stats else None
        return {
            0: SimpleNamespace(outputs=outputs, scheduler_stats=stats),
            1: SimpleNamespace(outputs=[], scheduler_stats=None),
        }

    def output_of(self, request_id: str) -> Any:
        return SimpleNamespace(request_id=request_id, kv_transfer_params=None)

    def make_spec_decoding_stats(
        self,
        spec_decoding_stats: Any,
        num_draft_tokens: int,
        num_accepted_tokens: int,
        num_invalid_spec_tokens: dict[str, int] | None,
        request_id: str,
    ) -> Any:
        return "vllm's", num_draft_tokens, num_accepted_tokens

    def _free_request(self, request: Any, delay_free_blocks: bool = False) -> Any:
        return None, "ec"


@pytest.fixture
def scheduler() -> Any:
    """The hooks over a toy scheduler."""
    from engine_adapter.vllm_engine.core.scheduler import SchedulerHooks
    from engine_adapter.vllm_engine.core.slow_rows import SlowRows

    class HookedToy(SchedulerHooks, ToyScheduler):
        pass

    hooked = HookedToy()
    hooked.row_table = RowTable(planner(), CONTEXT)
    hooked._failures, hooked._slow_rows = {}, SlowRows()
    hooked._budget, hooked._budget_of_one = 100, 10
    return hooked


def arriving(
    request_id: str,
    method: SpecMethod = NGRAM,
    stop: tuple[str, ...] = (),
    streams_stats: bool = False,
) -> Any:
    """A request as vLLM's scheduler gets it."""
    made = request()
    made.request_id = request_id
    made.structured_output_request = None
    params = to_extra_args(SpecDecodeParams(method, streams_stats=streams_stats))
    made.sampling_params = SimpleNamespace(
        extra_args=params, stop=list(stop), temperature=0.0, structured_outputs=None
    )
    return made


def scheduled(drafts: dict[str, int], *plain: str, new: int = 0, extra: int = 0) -> Any:
    """A `SchedulerOutput`: rows with drafts to verify, rows without, and `extra` prompt tokens."""
    counts = {name: 1 + count for name, count in drafts.items()} | dict.fromkeys(plain, 1)
    return SimpleNamespace(
        scheduled_spec_decode_tokens={name: [0] * count for name, count in drafts.items()},
        num_scheduled_tokens=counts,
        total_num_scheduled_tokens=sum(counts.values()) + extra,
        scheduled_new_reqs=[None] * new,
        has_structured_output_requests=False,
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
        preempted_req_ids=None,
    )


def run_step(scheduler: Any, output: Any, results: dict[str, tuple[int, int]], report: Any) -> Any:
    """One step; the outputs of the one client."""
    scheduler.next_output, scheduler.next_results = output, results
    assert scheduler.schedule() is output
    runner_output = SimpleNamespace(specgate_report=report) if report else SimpleNamespace()
    return scheduler.update_from_output(output, runner_output)[0]


def test_a_request_is_planned_counted_and_freed(scheduler: Any) -> None:
    scheduler.add_request(arriving("r"))
    assert set(scheduler.requests) == {"r"}
    output = scheduled({}, "r")
    run_step(scheduler, output, {"r": (0, 0)}, DraftReport(proposed={"ngram": 5}))
    assert output.specgate_plan.drafts == {"r": NGRAM}
    assert output.specgate_constraints == {}
    assert output.specgate_quarantined == frozenset()
    scheduler.next_ends = [scheduler.requests["r"]]
    sent = run_step(scheduler, scheduled({"r": 5}), {"r": (5, 2)}, None)
    report = decode_step(sent.scheduler_stats.kv_connector_stats)
    # The grammar had made one of the five drafts invalid.
    assert report.verified == {"ngram": ProposerCounts(1, 4, 2, (1, 1), 3)}
    assert report.kind is StepKind.VERIFY
    assert 0 < report.seconds < 60
    stats = decode_request(sent.outputs[0].kv_transfer_params)
    assert stats is not None
    assert stats.by_proposer == report.verified


def test_what_constraints_take_at_drafts_is_counted(scheduler: Any) -> None:
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    from engine_adapter.vllm_engine.core.constrained import GrammarCompiler

    compiler, options = GrammarCompiler(GrammarStore()), StructuredOutputOptions
    grammar = compiler.compile(demo_backend(), options.CHOICE, '["yes"]')
    scheduler.add_request(arriving("r"))
    scheduler.requests["r"].structured_output_request = SimpleNamespace(grammar=grammar)
    run_step(scheduler, scheduled({}, "r"), {"r": (0, 0)}, DraftReport())
    assert grammar.guides_drafts
    slow = DraftReport(constraint_times={"r": (9.0, 1)})
    run_step(scheduler, scheduled({}, "r"), {"r": (0, 0)}, slow)
    assert not grammar.guides_drafts


def test_a_request_that_was_never_added_is_freed_without_statistics(scheduler: Any) -> None:
    scheduler.next_ends = [arriving("unknown")]
    assert run_step(scheduler, scheduled({}), {}, None).outputs == []


def failing(request_id: str, grammar: Any) -> Any:
    """A request with a constraint whose matcher, or compilation, is `grammar`."""
    made = arriving(request_id)
    made.structured_output_request = SimpleNamespace(grammar=grammar)
    return made


def output_with_error(request_id: str) -> Any:
    """An output as vLLM 0.33 makes it: its front end raises the error and reads nothing else."""
    return SimpleNamespace(request_id=request_id, kv_transfer_params=None, error="theirs")


@pytest.mark.parametrize("output_of", [ToyScheduler().output_of, output_with_error])
@pytest.mark.parametrize(
    "grammar", [SimpleNamespace(failure="too many items"), ValueError("too many items")]
)
def test_the_reason_of_a_failed_constraint_leaves_with_the_requests_last_output(
    scheduler: Any, grammar: Any, output_of: Any
) -> None:
    scheduler.output_of = output_of
    scheduler.add_request(arriving("r"))
    scheduler.add_request(arriving("s"))
    scheduler._failures = {"earlier": "another"}
    scheduler.next_ends = [failing("r", grammar), failing("s", SimpleNamespace(failure=None))]
    results = {"r": (0, 0), "s": (0, 0)}
    sent = run_step(scheduler, scheduled({}, "r", "s"), results, None).outputs
    failures = [decode_failure(output.kv_transfer_params) for output in sent]
    assert failures == ["too many items", None]
    errors = [getattr(output, "error", None) for output in sent]
    assert errors == [None, "theirs" if output_of is output_with_error else None]
    assert scheduler._failures == {}


def test_the_runners_report_and_its_faults_leave_with_the_step(scheduler: Any) -> None:
    scheduler.add_request(arriving("r"))
    for quarantined in ((), (), (), (), ("ngram",)):
        faulty = DraftReport(faults={"ngram": "broken"})
        sent = run_step(scheduler, scheduled({}, "r"), {"r": (0, 0)}, faulty)
        report = decode_step(sent.scheduler_stats.kv_connector_stats)
        assert (report.faults, report.quarantined) == ({"ngram": "broken"}, quarantined)
        assert report.verified == {NONE: ProposerCounts(emitted=1)}
    output = scheduled({}, "r")
    run_step(scheduler, output, {"r": (0, 0)}, None)
    assert output.specgate_plan == NO_PLAN
    assert output.specgate_quarantined == {"ngram"}


def test_what_a_policy_did_leaves_with_its_own_step(scheduler: Any) -> None:
    scheduler.add_request(arriving("r", SpecMethod("load", 5)))
    work = [("ngram", DraftTime(1e-7, 1, 5, 5, 0))]
    sent = run_step(scheduler, scheduled({}, "r"), {"r": (0, 0)}, DraftReport(work=work))
    report = decode_step(sent.scheduler_stats.kv_connector_stats)
    assert report.policy is not None
    assert report.policy.decisions == {"load": {"ngram": 1, NONE: 0}}
    assert report.policy.measured_s is None, "there was no prediction"
    sent = run_step(scheduler, scheduled({"r": 4}), {"r": (4, 3)}, DraftReport(work=work))
    report = decode_step(sent.scheduler_stats.kv_connector_stats)
    assert report.policy is not None
    assert 0 < (report.policy.measured_s or 0) < report.seconds
    known = scheduler.row_table.planner.snapshot()["proposers"]["ngram"]["acceptance"]
    assert known["greedy"]["drafts"] == 1


@pytest.mark.parametrize(
    ("temperature", "constraint", "expected"),
    [(0.0, None, "GREEDY"), (0.7, None, "SAMPLED"), (0.7, {}, "STRUCTURED"), (0, {}, "STRUCTURED")],
)
def test_the_class_of_a_request_comes_from_its_sampling(
    temperature: float, constraint: Any, expected: str
) -> None:
    from engine_adapter.vllm_engine.core.scheduler import request_class

    params = SimpleNamespace(temperature=temperature, structured_outputs=constraint)
    assert request_class(params).name == expected


def test_requests_with_stop_strings_and_those_that_ask_stream_their_statistics(
    scheduler: Any,
) -> None:
    """The front end finds a stop string itself: any output may be the last that it reads."""
    scheduler.add_request(arriving("plain"))
    scheduler.add_request(arriving("stops", stop=("END",)))
    scheduler.add_request(arriving("asks", streams_stats=True))
    results = {"plain": (0, 0), "stops": (0, 0), "asks": (0, 0)}
    sent = run_step(scheduler, scheduled({}, "plain", "stops", "asks"), results, None)
    attached = {o.request_id for o in sent.outputs if o.kv_transfer_params is not None}
    assert attached == {"stops", "asks"}


def test_without_vllms_statistics_there_is_no_report(scheduler: Any) -> None:
    scheduler.log_stats = False
    scheduler.add_request(arriving("r"))
    sent = run_step(scheduler, scheduled({}, "r"), {"r": (0, 0)}, None)
    assert sent.scheduler_stats is None


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
def test_the_kind_of_a_step_is_the_work_of_its_rows(
    drafts: dict[str, int], new: int, extra: int, kind: str
) -> None:
    from engine_adapter.vllm_engine.core.scheduler import step_size

    rest = {"a", "b"} - set(drafts)
    output = scheduled(drafts, *rest, new=new, extra=extra)
    assert step_size(output, sum(drafts.values())).kind == kind


@pytest.mark.parametrize(
    ("threshold", "adaptive", "in_parts", "budget", "expected"),
    [
        (64, False, True, 2048, 128),
        (0, False, True, 2048, 2048),
        (64, True, True, 2048, 2048),
        (64, False, True, 100, 100),
        # Its drafts are verified in one step all the same.
        (3, False, True, 2048, 9),
        # A prompt that is not read in parts would wait for ever.
        (64, False, False, 2048, 2048),
    ],
)
def test_a_lone_request_reads_at_most_two_thresholds_in_a_step(
    threshold: int, adaptive: bool, in_parts: bool, budget: int, expected: int
) -> None:
    from engine_adapter.vllm_engine.core.scheduler import budget_of_one

    config = SimpleNamespace(
        enable_chunked_prefill=in_parts,
        long_prefill_token_threshold=threshold,
        long_prefill_token_threshold_adaptive=adaptive,
    )
    assert budget_of_one(config, budget, min_row_tokens=9) == expected
