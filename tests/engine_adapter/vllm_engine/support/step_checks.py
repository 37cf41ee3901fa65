"""What a step of the paged world did, and whether every proposer did it right."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine_adapter.types import SpecMethod
from engine_adapter.vllm_engine.wire import DraftReport
from tests.engine_adapter.vllm_engine.support.toy_models import ToyDraft, ToyHead
from tests.engine_adapter.vllm_engine.support.toy_scheduler import Request


@dataclass
class StepResult:
    """What one step did."""

    drafts: Mapping[str, list[int]]
    emitted: Mapping[str, int]
    fed: Mapping[str, Mapping[str, list[int]]]
    """Proposer -> request -> committed positions that it read."""
    report: DraftReport | None
    preempted: list[str]
    hits: Mapping[str, int]


class StepChecks:
    """Compares what toy models did in a step with what they must do, row by row."""

    def __init__(
        self,
        toys: Mapping[str, ToyDraft | ToyHead],
        requests: Mapping[str, Request],
        block_size: int,
    ) -> None:
        self._toys, self._requests, self._block_size = toys, requests, block_size

    def fed(self) -> dict[str, dict[str, list[int]]]:
        """Proposer -> request -> committed positions that it read; their tokens are right."""
        return {name: self._fed(toy) for name, toy in self._toys.items()}

    def _fed(self, toy: ToyDraft | ToyHead) -> dict[str, list[int]]:
        fed: dict[str, list[int]] = {}
        for request_id, position, token in toy.fed:
            committed = self._requests[request_id].tokens[toy._shift :]
            if position < len(committed):
                assert token == committed[position]
                fed.setdefault(request_id, []).append(position)
        return fed

    def check(
        self, plan: Mapping[str, SpecMethod], before: Mapping[str, int], result: StepResult
    ) -> None:
        """Checks every draft, what was read for it, and the catch-up that is reported.

        Args:
            before: request -> tokens that the target had read before the step.
        """
        assert not (result.report and result.report.faults)
        for name in result.emitted:
            self._check_row(name, plan.get(name, SpecMethod()), result)
        for proposer, fed in result.fed.items():
            lag = sum(p < before[name] for name, positions in fed.items() for p in positions)
            reported = result.report.catchup.get(proposer, 0) if result.report else 0
            assert reported == lag, "the catch-up counted is the lag that was read"

    def _check_row(self, name: str, chosen: SpecMethod, result: StepResult) -> None:
        if chosen.proposer not in self._toys:
            if not chosen.num_speculative_tokens:
                assert result.drafts[name] == []
            return
        toy, request = self._toys[chosen.proposer], self._requests[name]
        emitted = result.emitted[name]
        room = toy.max_model_len - len(request.tokens)
        k = min(chosen.num_speculative_tokens, room) if emitted else 0
        reference = toy.continuation(request.tokens, max(k, 0))
        assert result.drafts[name] == reference, f"{name} drafts other than if never away"
        fed = result.fed[chosen.proposer].get(name, [])
        assert fed == sorted(set(fed)), "each position is read once, in order"
        if request.drafted_by == chosen.proposer and k > 0:
            self._check_steady_state(toy, request, emitted, fed)

    def _check_steady_state(
        self, toy: ToyDraft | ToyHead, request: Request, emitted: int, fed: list[int]
    ) -> None:
        if isinstance(toy, ToyDraft):
            assert 1 <= len(fed) <= 2, "a draft model reads one or two tokens a row"
            return
        stop = len(request.tokens) - 1
        assert fed[-emitted:] == list(range(stop - emitted, stop)), "a head reads what is new"
        ends = [(position + 1) % self._block_size == 0 for position in fed[:-emitted]]
        assert all(ends), "and ends of blocks that another row took"
