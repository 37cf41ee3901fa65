"""The result of a step of the paged world, and the checks that it must pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine_adapter.seam.types import SpecMethod
from engine_adapter.vllm_engine.wire import DraftReport
from tests.engine_adapter.vllm_engine.support.toy_block_head import ToyBlockHead
from tests.engine_adapter.vllm_engine.support.toy_models import ToyDraft, ToyHead
from tests.engine_adapter.vllm_engine.support.toy_scheduler import Request

AnyToy = ToyDraft | ToyHead | ToyBlockHead


@dataclass
class StepResult:
    """The result of one step."""

    drafts: Mapping[str, list[int]]
    emitted: Mapping[str, int]
    fed: Mapping[str, Mapping[str, list[int]]]
    """Proposer -> request -> the committed positions that it ran."""
    report: DraftReport
    preempted: list[str]
    hits: Mapping[str, int]


class StepChecks:
    """Checks the toy models' work of a step, row by row."""

    def __init__(
        self,
        toys: Mapping[str, AnyToy],
        requests: Mapping[str, Request],
        block_sizes: Sequence[int],
    ) -> None:
        self._toys, self._requests, self._block_sizes = toys, requests, block_sizes

    def fed(self) -> dict[str, dict[str, list[int]]]:
        """Proposer -> request -> the committed positions that it ran, with checked tokens."""
        return {name: self._fed(toy) for name, toy in self._toys.items()}

    def _fed(self, toy: AnyToy) -> dict[str, list[int]]:
        fed: dict[str, list[int]] = {}
        for request_id, position, token in toy.fed:
            committed = self._requests[request_id].tokens[toy._token_offset :]
            if position < len(committed):
                assert token == committed[position]
                fed.setdefault(request_id, []).append(position)
        return fed

    def check(
        self, plan: Mapping[str, SpecMethod], before: Mapping[str, int], result: StepResult
    ) -> None:
        """Checks every draft, the positions that were run for it, and the reported catch-up.

        Args:
            before: request -> tokens that the target had read before the step.
        """
        assert not result.report.faults
        for name in result.emitted:
            self._check_row(name, plan.get(name, SpecMethod()), result)
        for proposer, fed in result.fed.items():
            lag = sum(p < before[name] for name, positions in fed.items() for p in positions)
            reported = result.report.catchup.get(proposer, 0)
            assert reported == lag, "the reported catch-up is the lag that was removed"

    def _check_row(self, name: str, chosen: SpecMethod, result: StepResult) -> None:
        if chosen.proposer not in self._toys:
            if not chosen.num_speculative_tokens:
                assert result.drafts[name] == []
            return
        toy, request = self._toys[chosen.proposer], self._requests[name]
        emitted = result.emitted[name]
        remaining = toy.max_model_len - len(request.tokens)
        k = min(chosen.num_speculative_tokens, remaining) if emitted else 0
        reference = toy.drafts(request.tokens, max(k, 0))
        if reference and not result.drafts[name] and self._may_lack_states(toy, request):
            assert name not in result.fed[chosen.proposer]
            return
        assert result.drafts[name] == reference, (
            f"{name}: other drafts than in a run without switches"
        )
        fed = result.fed[chosen.proposer].get(name, [])
        assert fed == sorted(set(fed)), "each position is run once, in order"
        if request.drafted_by == chosen.proposer and k > 0:
            self._check_steady_state(toy, request, emitted, fed)

    def _may_lack_states(self, toy: AnyToy, request: Request) -> bool:
        """Whether the head may have missed a position of the row, of which it keeps no state."""
        keeps = isinstance(toy, ToyDraft) or toy._states is not None
        return not keeps and request.drafted_by != toy.name

    def _check_steady_state(
        self, toy: AnyToy, request: Request, emitted: int, fed: list[int]
    ) -> None:
        if isinstance(toy, ToyDraft):
            most = emitted if toy.world.early else 2
            assert 1 <= len(fed) <= max(most, 2), "a draft model runs one or two tokens a row"
            return
        stop = len(request.tokens) - 1
        assert fed[-emitted:] == list(range(stop - emitted, stop)), "a head runs the new positions"
        ends = [
            any((position + 1) % size == 0 for size in self._block_sizes)
            for position in fed[:-emitted]
        ]
        assert all(ends), "and the ends of blocks that another row rewrote"
