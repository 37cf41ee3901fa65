"""Spoils verification in the engine of the process that calls it: a wrong draft is accepted."""

import torch

from engine_adapter.vllm_engine.worker.verification import exact_match

_RULE = exact_match.accept_matching


def accept_every_first_draft() -> None:
    """From now on the first draft of a row is emitted, also where the target says otherwise."""

    def accept_matching(
        samples: torch.Tensor, inputs: torch.Tensor, starts: torch.Tensor, width: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        first = starts[:-1][starts.diff() > 1].long()
        spoiled = samples.clone()
        spoiled[first] = inputs[first + 1].to(samples.dtype)
        return _RULE(spoiled, inputs, starts, width)

    exact_match.accept_matching = accept_matching


def accept_what_matches() -> None:
    """The rule is the engine's own again."""
    exact_match.accept_matching = _RULE
