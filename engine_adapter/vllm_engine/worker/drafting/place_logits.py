"""The logits of the places of some blocks, of which each may depend on the draft before it."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import silu

Latents = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A function of places, int64 [N], and of the tokens before them, int [N]: float [N, R]. Its
product with a row of R numbers of a token is what is added to the logit of that token."""

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


AddBias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""A function that changes logits [N, V] of places [N] after tokens [N], in place."""


def product_bias(latents: Latents, readout: torch.Tensor) -> AddBias:
    """The function that adds the products of latents and rows of `readout`, [V, R]."""

    def add(logits: torch.Tensor, places: torch.Tensor, previous: torch.Tensor) -> None:
        logits.addmm_(latents(places, previous), readout.T)

    return add


class BiasedLogits(PlaceLogits):
    """Those of a head that adds to all tokens of a place what follows from the drafts before.

    Args:
        logits: [T, V], of T places, without it.
        add_bias: adds it.
    """

    def __init__(self, logits: torch.Tensor, add_bias: AddBias) -> None:
        super().__init__(logits)
        self._add_bias = add_bias

    def all_likeliest(self) -> torch.Tensor | None:
        """See `PlaceLogits.all_likeliest`."""
        return None

    def after(self, places: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """See `PlaceLogits.after`."""
        logits = super().after(places, previous)
        self._add_bias(logits, places, previous)
        return logits


class CandidateLogits(PlaceLogits):
    """Those of a head that adds something to the likeliest tokens of a place alone.

    They are scored after the token that was drafted before, also where a constraint chose one that
    was not a candidate.

    Args:
        candidates: int64 [T, K], the likeliest tokens of T places.
        logits: float32 [T, K], theirs.
        latents: see `Latents`.
        readout: [V, R], the row of each token of the target.
    """

    def __init__(
        self,
        candidates: torch.Tensor,
        logits: torch.Tensor,
        latents: Latents,
        readout: torch.Tensor,
    ) -> None:
        super().__init__(logits)
        self._candidates = candidates
        self._latents, self._readout = latents, readout

    def all_likeliest(self) -> torch.Tensor | None:
        """See `PlaceLogits.all_likeliest`."""
        return None

    def _scores(
        self, places: torch.Tensor, previous: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The candidates of some places, int64 [N, K], and their scores, float32 [N, K]."""
        candidates = self._candidates[places]
        bias = torch.einsum(
            "nr,nkr->nk", self._latents(places, previous), self._readout[candidates]
        )
        return candidates, self._logits[places] + bias

    def after(self, places: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """See `PlaceLogits.after`."""
        candidates, scores = self._scores(places, previous)
        logits = scores.new_full((len(places), len(self._readout)), _NEVER)
        return logits.scatter_(1, candidates, scores)

    def likeliest(self, places: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """See `PlaceLogits.likeliest`."""
        candidates, scores = self._scores(places, previous)
        return candidates.gather(1, scores.argmax(dim=-1, keepdim=True))[:, 0]


class SelectorLatents:
    """See `Latents`; those of a DFlash2 head's selector.

    vLLM scores each candidate after each candidate of the place before; here one is scored after
    the draft there.

    Args:
        selector: vLLM's module.
        states: [T, H], the hidden states of T places.
    """

    def __init__(self, selector: Any, states: torch.Tensor) -> None:
        self._codebook = selector.predecessor_codebook
        self._projected = selector.hidden_projection(states)

    def __call__(self, places: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """They depend on the token before and on the state of the place."""
        latents: torch.Tensor = self._codebook[previous] * self._projected[places]
        return latents


class RefinerLatents:
    """See `Latents`; those of an XPress head's refiner.

    They depend on all drafts of a block before a place, so the places of a block must come in
    order.

    Args:
        refiner: vLLM's module.
        states: [N, B, H], the hidden states of N blocks of B places.
        newest: int [N], the token with which each block begins.
        places: int64 [T], where in the blocks, [N * B], the T places are that give drafts.
    """

    def __init__(
        self, refiner: Any, states: torch.Tensor, newest: torch.Tensor, places: torch.Tensor
    ) -> None:
        size = states.shape[1]
        self._refiner = refiner
        self._block, self._place = places // size, places % size
        of_states, self._of_tokens = refiner.in_proj.weight.split(
            [2 * refiner.rank, refiner.rank], dim=1
        )
        self._of_states = refiner.hidden_cache(states) @ of_states.T  # [N, B, R]
        self._inputs = self._of_states.clone()
        self._mixer = refiner.mix_L.permute(1, 2, 0)[:, :size]  # [place, place before, R]
        # The token before the newest one cannot be read here; the newest one stands for it.
        self._inputs[:, 0] += self._embedded(newest)

    def _embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self._refiner.w1(tokens) @ self._of_tokens.T
        return embedded

    def __call__(self, places: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """They depend on the states of a block and on its tokens before the place."""
        refiner, block, place = self._refiner, self._block[places], self._place[places]
        self._inputs[block, place] = self._of_states[block, place] + self._embedded(previous)
        # The mixer is zero for later places.
        mixed = (self._mixer[place] * self._inputs[block]).sum(dim=1)
        latents: torch.Tensor = mixed + refiner.mlp_down(
            silu(refiner.mlp_gate(mixed)) * refiner.mlp_up(mixed)
        )
        return latents
