"""A `RowTable` taken through steps, with the requests that vLLM's scheduler would hold."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from engine_adapter.counts import SpecStats, StepKind
from engine_adapter.policies.contract import StepPlan
from engine_adapter.policies.fixed import FixedPolicy
from engine_adapter.types import SpecDecodeParams, SpecMethod, Switch
from engine_adapter.vllm_engine.core.row_table import RowTable
from engine_adapter.vllm_engine.wire import DraftReport, decode_request

NGRAM, DRAFT = SpecMethod("ngram", 5), SpecMethod("small", 4)
CONTEXT = 100


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

    Attributes:
        table: the table under test.
        requests: request id -> vLLM's request.
    """

    def __init__(self) -> None:
        self.table = RowTable(FixedPolicy(), CONTEXT)
        self.requests: dict[str, Any] = {}

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

    def count(self, outcomes: Mapping[str, tuple[int, int]], faults: tuple[str, ...] = ()) -> None:
        """The step's outputs arrive.

        Args:
            outcomes: request id -> number of drafts verified, and of those accepted.
            faults: proposers that failed in the step.
        """
        report = DraftReport(faults=dict.fromkeys(faults, "broken")) if faults else None
        self.table.start_count(StepKind.DECODE, report)
        for name, (drafted, accepted) in outcomes.items():
            if drafted:
                self.table.count_verified(name, drafted, accepted)
            self.table.count_emitted(name, accepted + 1)
            self.requests[name].num_output_tokens += accepted + 1
            self.requests[name].num_tokens += accepted + 1

    def step(self, **outcomes: tuple[int, int]) -> StepPlan:
        """One whole step; see `count`."""
        verified = tuple(name for name, (drafted, _) in outcomes.items() if drafted)
        plan = self.plan(*outcomes, verified=verified)
        self.count(outcomes)
        return plan

    def end(self, request_id: str) -> SpecStats:
        """The request ends; its statistics."""
        del self.requests[request_id]
        stats = decode_request(self.table.free(request_id))
        assert stats is not None
        return stats
