"""Spoils verification in the engine of the process that calls it: a wrong draft is accepted."""

from typing import Any

import torch
from engine_adapter.vllm_engine.worker.verification.layout import VerifyLayout

_RULE = VerifyLayout.accept_matching


def accept_every_first_draft() -> None:
    """From now on the first draft of a row is emitted, also where the target says otherwise."""

    def accept_matching(self: Any, drafts: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
        spoiled, taken = samples.clone(), 0
        for first, count in zip(self.starts_on_cpu, self.num_draft_tokens, strict=True):
            if count:
                spoiled[first] = drafts[taken]
            taken += count
        return _RULE(self, drafts, spoiled)

    VerifyLayout.accept_matching = accept_matching  # type: ignore[method-assign]


def accept_what_matches() -> None:
    """The rule is the engine's own again."""
    VerifyLayout.accept_matching = _RULE  # type: ignore[method-assign]
