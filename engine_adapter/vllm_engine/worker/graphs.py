"""CUDA graphs of whole steps where attention needs rows of one length.

vLLM captures one length, that of the most drafts. Here steps without drafts are as common, and each
proposer has a k of its own. Steps whose rows have other numbers of drafts, or different ones, run
in pieces.

Imports vLLM's runner: only a worker's process may import it.
"""

from collections.abc import Sequence
from typing import Any

from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.methods import get_method
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.wire import SpecgateConfig

Shapes = dict[Any, list[Any]]
"""vLLM's `BatchExecutionDescriptor`s by a key, in an order that matters."""


class PlannedGraphs(compat.ModelCudaGraphManager):
    """vLLM's manager of the target's graphs, for rows of each of `row_lengths`."""

    decode_query_len: int
    _capture_descs: Shapes
    _candidates: Shapes

    def _init_candidates(self) -> None:
        """Sets what is captured, and which graphs a step with some number of tokens may replay."""
        longest = self.decode_query_len
        captured: Shapes = {}
        candidates: Shapes = {}
        for length in row_lengths(SpecgateConfig.from_vllm_config(self.vllm_config).proposers):
            self.decode_query_len = length
            self._capture_descs, self._candidates = {}, {}
            super()._init_candidates()
            # Graphs of whole steps come before those of pieces, which are the same for all lengths.
            captured = _joined(self._capture_descs, captured)
            candidates = _joined(self._candidates, candidates)
        for shapes in captured.values():  # vLLM captures the largest first
            shapes.sort(key=lambda shape: shape.num_tokens, reverse=True)
        self.decode_query_len = longest
        self._capture_descs, self._candidates = captured, candidates


def row_lengths(specs: Sequence[ProposerSpec]) -> list[int]:
    """How many tokens each row of a uniform step reads: one, or k + 1 with a draft of a model.

    Lookups draft for some rows, and any number of tokens.
    """
    models = [spec for spec in specs if get_method(spec.method).capabilities.runs_model]
    return sorted({1, *(spec.num_speculative_tokens + 1 for spec in models)})


def _joined(shapes: Shapes, more_shapes: Shapes) -> Shapes:
    """Both without repetition, in this order."""
    return {
        key: [
            *(shape for shape in shapes.get(key, ()) if shape not in more_shapes.get(key, ())),
            *more_shapes.get(key, ()),
        ]
        for key in {**shapes, **more_shapes}
    }
