"""The logits of the places of some blocks, of which each may depend on the draft before it."""

from collections.abc import Callable
from typing import Any

import torch

_NEVER = -1e9
"""The logit of a token that is not a candidate. It is finite: where a constraint forbids all
candidates, the likeliest of the tokens that it allows can still be found."""


class PlaceLogits:
    """Logits that depend on no draft.

    Args:
        logits: [T, V], of T places.
    """

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits

    def all_likeliest(self) -> torch.Tensor | None:
        """The likeliest token of each place, int64 [T]; `None` where it depends on a draft."""
        return self._logits.argmax(dim=-1)

    def after(self, places: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """The logits of some places after the tokens before them, [N, V]; a copy.

        Args:
            places: int64 [N], indices of places.
            previous: int [N], the token before each.
        """
        return self._logits[places]

    def likeliest(self, places: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """The likeliest token of each of some places, int64 [N]; see `after`."""
        return self.after(places, previous).argmax(dim=-1)


class MarkovLogits(PlaceLogits):
    """Those of a DSpark head, whose Markov head adds what follows from the token before.

    Args:
        logits: [T, V], of T places, without it.
        add_bias: adds it to logits [N, V], in place, after tokens [N].
    """

    def __init__(
        self, logits: torch.Tensor, add_bias: Callable[[torch.Tensor, torch.Tensor], None]
    ) -> None:
        super().__init__(logits)
        self._add_bias = add_bias

    def all_likeliest(self) -> torch.Tensor | None:
        """See `PlaceLogits.all_likeliest`."""
        return None

    def after(self, places: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """See `PlaceLogits.after`."""
        logits = super().after(places, previous)
        self._add_bias(logits, previous)
        return logits


class CandidateLogits(PlaceLogits):
    """Those of a DFlash2 head: a place has K candidates, which its selector scores.

    vLLM scores each candidate after each candidate of the place before. Here it is scored after
    the token that was drafted there, also where a constraint chose one that was no candidate.

    Args:
        candidates: int64 [T, K], of T places.
        logits: float32 [T, K], theirs.
        states: [T, H], the hidden states of the places.
        selector: vLLM's module.
        vocab_size: V, of the target.
    """

    def __init__(
        self,
        candidates: torch.Tensor,
        logits: torch.Tensor,
        states: torch.Tensor,
        selector: Any,
        vocab_size: int,
    ) -> None:
        super().__init__(logits)
        self._candidates, self._vocab_size = candidates, vocab_size
        self._selector, self._projected = selector, selector.hidden_projection(states)

    def all_likeliest(self) -> torch.Tensor | None:
        """See `PlaceLogits.all_likeliest`."""
        return None

    def _scores(
        self, places: torch.Tensor, previous: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The candidates of some places, int64 [N, K], and their scores, float32 [N, K]."""
        candidates = self._candidates[places]
        weights = self._selector.predecessor_codebook[previous] * self._projected[places]
        successors = self._selector.successor_codebook[candidates]
        return candidates, self._logits[places] + torch.einsum("nr,nkr->nk", weights, successors)

    def after(self, places: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """See `PlaceLogits.after`."""
        candidates, scores = self._scores(places, previous)
        logits = scores.new_full((len(places), self._vocab_size), _NEVER)
        return logits.scatter_(1, candidates, scores)

    def likeliest(self, places: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """See `PlaceLogits.likeliest`."""
        candidates, scores = self._scores(places, previous)
        return candidates.gather(1, scores.argmax(dim=-1, keepdim=True))[:, 0]
