"""Proposers that misbehave, in a real engine's process.

The engine's process is spawned, so a test cannot patch it. It imports this module because its
executor is defined here, and the import registers the methods.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
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
from engine_adapter.vllm_engine.worker.smoke_test import SMOKE_TEST_REQUEST


class FaultyExecutor(UniProcExecutor):
    """vLLM's executor of one worker."""


def _raise(batch: DraftBatch) -> Drafts:
    raise RuntimeError(f"broken at {int(batch.num_tokens[0])} tokens")


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
    """A draft model whose drafts are lost at its calls 3, 6 and 9."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._calls = 0

    @property
    def weights_bytes(self) -> int:
        weights: int = self._model.weights_bytes
        return weights

    def propose(self, batch: DraftBatch) -> Drafts:
        self._calls += not is_trial(batch)
        drafts: Drafts = self._model.propose(batch)
        if self._calls in (3, 6, 9):
            raise RuntimeError("lost")
        return drafts

    def forget(self, request_ids: Sequence[str]) -> None:
        """The engine forgets for its draft models."""


def _faulty(spec: ProposerSpec, host: DraftHost) -> Proposer:
    return Faulty(WAYS[spec.name])


def _faulty_draft(spec: ProposerSpec, host: DraftHost) -> Proposer:
    return FaultyDraft(host.draft_model(replace(spec, method="draft_model")))


def _broken(spec: ProposerSpec, host: DraftHost) -> Proposer:
    return Broken(WAYS["raises"])


for _name, _needs, _create in (
    ("faulty", Capabilities(), _faulty),
    ("broken", Capabilities(), _broken),
    ("faulty_draft", Capabilities(model=True, draft_kv=True), _faulty_draft),
):
    methods._BY_NAME[_name] = ProposerMethod(_name, _needs, 4, {}, lambda spec: None, _create)
