"""The CPU time of an engine step, and of the part in the models; tables of both.

The rest of a step is the work of the engine around its models. Two equal processes can differ in
speed for as long as they run, but in both parts alike. So the rest is
compared per millisecond in the models, which shows small differences after a few starts.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.estimate import paired_difference
from benchmarks.sides import Side

METHODS = (
    *("forward", "compute_logits"),
    *("combine_hidden_states", "precompute_and_store_context_kv"),
)
"""What a step calls of a model."""

_STOCK_DRAFTERS = ("EagleProposer", "DraftModelProposer", "DFlashProposer")
"""vLLM's classes on its model runner V1."""


class StepTime(NamedTuple):
    """CPU milliseconds of a step, or medians of them.

    Attributes:
        total: of all of it.
        models: of the part in the models.
    """

    total: float
    models: float

    @property
    def outside(self) -> float:
        """Milliseconds outside the models."""
        return self.total - self.models


class ModelTime:
    """Counts the CPU time of this thread in the target and in the draft models that vLLM loaded.

    Args:
        engine: vLLM's `LLMEngine`, with its model runner in this process.
    """

    def __init__(self, engine: Any) -> None:
        self._spent_s = 0.0
        for model in _models(engine):
            for name in METHODS:
                if call := getattr(model, name, None):
                    setattr(model, name, self._counted(call))

    def take_ms(self) -> float:
        """Milliseconds since the last call."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return 1e3 * spent_s

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self._spent_s += time.thread_time() - began

        return counted


def table_rows(
    method: str, streams: int, rounds: Mapping[Side, Sequence[StepTime]]
) -> Iterator[str]:
    """A table row for each side.

    Args:
        method: name of the measured proposer, or `none`.
        streams: concurrent requests.
        rounds: for each side, the times of a step in each round; the first side is the base.
    """
    base_side = next(iter(rounds))
    base = rounds[base_side]
    for side, times in rounds.items():
        pairs = list(zip(times, base, strict=True))
        cells = [f"{statistics.median(time.total for time in times):.2f}", ""]
        # Two processes differ in speed: the models of both sides would take the base's time.
        outside = [
            side_time.outside * base_time.models / side_time.models
            for side_time, base_time in pairs
        ]
        cells += [f"{statistics.median(outside):.2f}", ""]
        if side != base_side:
            totals = [[time.total for time in side_times] for side_times in (times, base)]
            cells[1] = paired_difference(*totals).text(2, "+")
            cells[3] = paired_difference(outside, [time.outside for time in base]).text(2, "+")
        yield f"| `{method}` | {streams} | {side} | {' | '.join(cells)} |"


def _models(engine: Any) -> Iterator[Any]:
    """The target, and the draft models of Specgate's dispatch or of vLLM's proposer.

    Heads of Medusa and MLP speculators are left out: Specgate has modules of its own for them.
    """
    from engine_adapter.vllm_engine.worker.dispatch import ProposerDispatch

    executor = engine.engine_core.engine_core.model_executor
    runner = executor.driver_worker.worker.model_runner
    yield runner.model
    drafter: Any = getattr(runner, "drafter", None)
    if isinstance(drafter, ProposerDispatch):
        for draft in drafter.host.draft_models.values():
            yield draft._loaded.model
    elif type(drafter).__name__ in _STOCK_DRAFTERS:
        yield drafter.model
