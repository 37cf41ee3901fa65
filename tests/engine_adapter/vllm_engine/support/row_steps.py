"""A `RowTable` taken through steps, with the requests that vLLM's scheduler would hold."""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from engine_adapter.policies.contract import ProposerTraits, StepPlan
from engine_adapter.policies.planner import Planner
from engine_adapter.seam.counts import SpecStats, StepKind, StepReport
from engine_adapter.seam.types import SpecDecodeParams, SpecMethod, Switch
from engine_adapter.vllm_engine.core.counting import StepSize
from engine_adapter.vllm_engine.core.row_table import RowTable
from engine_adapter.vllm_engine.wire import DraftReport, decode_request, decode_step

NGRAM, DRAFT = SpecMethod("ngram", 5), SpecMethod("small", 4)
TRAITS = (
    ProposerTraits("ngram", 5, lookup=True),
    ProposerTraits("small", 4, keeps_kv=True),
)
CONTEXT = 100


def planner(parameters: Mapping[str, Any] | None = None) -> Planner:
    """A planner of both proposers; `ngram` is the primary one."""
    return Planner(TRAITS, 5, parameters, "ngram")


def request(
    prompt: int = 10, output: int = 0, max_tokens: int = 50, in_prompt: bool = False
) -> Any:
    """vLLM's request, as far as a plan reads it."""
    return SimpleNamespace(
        num_tokens=prompt + output,
        num_output_tokens=output,
        max_tokens=max_tokens,
        is_prefill_chunk=in_prompt,
    )


class RowSteps:
    """A table, and the requests whose rows it has.

    Args:
        used: the table's planner; one of both proposers if it is not given.
        drafts_late: see `RowTable`.

    Attributes:
        table: the table under test.
        requests: request id -> vLLM's request.
        outputs: of the newest step that was counted.
    """

    def __init__(self, used: Planner | None = None, *, drafts_late: bool = False) -> None:
        self.table = RowTable(used or planner(), CONTEXT, drafts_late)
        self.requests: dict[str, Any] = {}
        self.outputs: list[Any] = []

    def admit(
        self,
        request_id: str,
        method: SpecMethod = NGRAM,
        *,
        pinned: bool = False,
        epoch: int = 0,
        streams_stats: bool = False,
        **sizes: Any,
    ) -> None:
        """A request arrives; `sizes` as `request` takes them."""
        self.requests[request_id] = request(**sizes)
        self.table.admit(request_id, SpecDecodeParams(method, pinned, epoch), streams_stats)

    def switch(self, method: SpecMethod, epoch: int) -> None:
        """A switch of running requests."""
        self.table.switch(Switch(method, epoch))

    def plan(self, *request_ids: str, verified: tuple[str, ...] = ()) -> StepPlan:
        """A step of these requests begins, in which the drafts of `verified` are verified."""
        self.table.start_step()
        return self.table.plan(request_ids, verified, self.requests)

    def count(
        self,
        outcomes: Mapping[str, tuple[int, int]],
        faults: Iterable[str] = (),
        report: DraftReport | None = None,
        kind: StepKind = StepKind.DECODE,
        ends: Iterable[str] = (),
    ) -> None:
        """The step's outputs arrive.

        Args:
            outcomes: request id -> number of drafts verified, and of those accepted.
            faults: proposers that failed in the step.
            report: the runner's, if it is not made of `faults`.
            ends: requests whose last step it is; vLLM frees them before the step's counts end.
        """
        if faults:
            report = DraftReport(faults=dict.fromkeys(faults, "broken"))
        self.table.start_count(report)
        for name, (drafted, accepted) in outcomes.items():
            if drafted:
                self.table.count_verified(name, drafted, accepted)
            self.requests[name].num_output_tokens += accepted + 1
            self.requests[name].num_tokens += accepted + 1
        for name in ends:
            self.table.free(name)
            del self.requests[name]
        self.outputs = [output(name, accepted + 1) for name, (_, accepted) in outcomes.items()]
        self.table.count_outputs(self.outputs)
        drafts = sum(drafted for drafted, _ in outcomes.values())
        self.table.end_count(StepSize(kind, len(outcomes), len(outcomes) + drafts, drafts))

    def step(self, **outcomes: tuple[int, int]) -> StepPlan:
        """One whole step; see `count`."""
        return self.reported(None, **outcomes)

    def reported(self, report: DraftReport | None, **outcomes: tuple[int, int]) -> StepPlan:
        """One whole step whose runner reports `report`; see `count`."""
        verified = tuple(name for name, (drafted, _) in outcomes.items() if drafted)
        plan = self.plan(*outcomes, verified=verified)
        self.count(outcomes, report=report)
        return plan

    def sent(self) -> StepReport:
        """The step's report, as the gateway reads it."""
        return decode_step(self.table.step_stats())

    def end(self, request_id: str) -> SpecStats:
        """The request ends without another token; its statistics."""
        del self.requests[request_id]
        self.table.free(request_id)
        last = output(request_id, 0)
        self.table.count_outputs([last])
        stats = decode_request(last.kv_transfer_params)
        assert stats is not None
        return stats


def output(request_id: str, tokens: int) -> Any:
    """vLLM's `EngineCoreOutput` with so many tokens."""
    return SimpleNamespace(
        request_id=request_id, new_token_ids=[7] * tokens, kv_transfer_params=None
    )
