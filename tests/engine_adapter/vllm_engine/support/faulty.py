"""Proposers that misbehave, in a real engine's process.

The engine's process is spawned, so a test cannot patch it. It imports this module because its
executor is defined here, and the import registers the methods.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from vllm.v1.executor.uniproc_executor import UniProcExecutor

from engine_adapter.proposers import methods
from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import (
    Capabilities,
    DraftHost,
    Proposer,
    ProposerMethod,
    ProposerSpec,
)
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.executor import ReportingExecutor
from engine_adapter.vllm_engine.worker.smoke_test import SMOKE_TEST_REQUEST


class FaultyExecutor(UniProcExecutor):
    """vLLM's executor of one worker."""


class FaultyRanksExecutor(ReportingExecutor):
    """The executor of several workers."""


def _raise(batch: DraftBatch) -> Drafts:
    raise RuntimeError(f"broken at {int(batch.num_tokens[0])} tokens")


def _on_rank(rank: int, batch: DraftBatch) -> Drafts:
    """Fails on one rank; the others draft."""
    if compat.parallel_state.get_tp_group().rank_in_group == rank:
        return _raise(batch)
    return Drafts([[5] * k for k in batch.k.tolist()])


NAN: Any = float("nan")
"""Not a token id."""

WAYS: dict[str, Callable[[DraftBatch], Any]] = {
    "raises": _raise,
    "ids": lambda batch: Drafts([[10**6] * k for k in batch.k.tolist()]),
    "negative": lambda batch: Drafts([[-1] * k for k in batch.k.tolist()]),
    "many": lambda batch: Drafts([[5] * (k + 1) for k in batch.k.tolist()]),
    "rows": lambda batch: Drafts([[5]] * (len(batch.k) + 1)),
    "nan": lambda batch: Drafts([[NAN] * k for k in batch.k.tolist()]),
    "nothing": lambda batch: None,
    "overwrites": lambda batch: batch.token_ids.fill(0),
}
"""Name of a proposer of method `faulty` -> how it fails."""

RANK_WAYS: dict[str, Callable[[DraftBatch], Any]] = {
    f"rank_{rank}_raises": partial(_on_rank, rank) for rank in range(2)
}
"""The same for an engine of two ranks."""


def is_trial(batch: DraftBatch) -> bool:
    """Whether the proposer only has to show that it can draft: a fault would end the start."""
    return SMOKE_TEST_REQUEST in batch.request_ids


class Faulty:
    """Fails at each call of a step."""

    weights_bytes = 0

    def __init__(self, way: Callable[[DraftBatch], Any]) -> None:
        self._way = way

    def propose(self, batch: DraftBatch) -> Drafts:
        if is_trial(batch):
            return Drafts([[]])
        drafts: Drafts = self._way(batch)
        return drafts

    def forget(self, request_ids: Sequence[str]) -> None:
        """It has no state."""


class Broken(Faulty):
    """Fails at its first call, which is its smoke test."""

    def propose(self, batch: DraftBatch) -> Drafts:
        return self._way(batch)  # type: ignore[no-any-return]


class FaultyDraft:
    """A draft model whose drafts are lost at its calls 3, 6 and 9.

    Args:
        rank: the only rank on which they are lost; `None` is each.
    """

    def __init__(self, model: Any, rank: int | None = None) -> None:
        self._model = model
        self._calls = 0
        group = compat.parallel_state.get_tp_group()
        self._loses = rank is None or group.rank_in_group == rank

    @property
    def weights_bytes(self) -> int:
        weights: int = self._model.weights_bytes
        return weights

    def propose(self, batch: DraftBatch) -> Drafts:
        self._calls += not is_trial(batch)
        drafts: Drafts = self._model.propose(batch)
        if self._loses and self._calls in (3, 6, 9):
            raise RuntimeError("lost")
        return drafts

    def forget(self, request_ids: Sequence[str]) -> None:
        """The engine forgets for its draft models."""


def _faulty(spec: ProposerSpec, host: DraftHost) -> Proposer:
    return Faulty((WAYS | RANK_WAYS)[spec.name])


def _faulty_draft(spec: ProposerSpec, host: DraftHost) -> Proposer:
    rank = {"rank_0_loses": 0, "rank_1_loses": 1}.get(spec.name)
    return FaultyDraft(host.draft_model(replace(spec, method="draft_model")), rank)


def _broken(spec: ProposerSpec, host: DraftHost) -> Proposer:
    return Broken(WAYS["raises"])


_DRAFT_OPTIONS = methods.get_method("draft_model").options

for _name, _needs, _options, _create in (
    ("faulty", Capabilities(), {}, _faulty),
    ("broken", Capabilities(), {}, _broken),
    ("faulty_draft", Capabilities(model=True, draft_kv=True), _DRAFT_OPTIONS, _faulty_draft),
):
    methods._BY_NAME[_name] = ProposerMethod(_name, _needs, 4, _options, lambda spec: None, _create)
