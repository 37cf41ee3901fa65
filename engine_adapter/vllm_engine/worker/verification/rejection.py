"""Speculative sampling: how many sampled drafts a row keeps, and what it draws after them.

Token rule, arXiv 2211.17192: a draft d, sampled from q, is kept with probability
min(1, p(d) / q(d)); in the place of the first that is not, norm(max(p - q, 0)) is drawn.

Block rule, arXiv 2403.10444 (algorithm 2): all drafts of a row are judged together. With
w_0 = 1 and w_i = min(1, w_{i-1} p(d_i) / q(d_i)), the longest prefix is kept whose own draw
succeeds: the whole row's with w_n, the first i drafts with s / (s + 1 - w_i), where s is the sum of
max(w_i p - q, 0) at the next position. After i drafts that are not all,
norm(max(w_i p - q, 0)) is drawn. It keeps as many drafts as the token rule or more.

A row's length may depend on its drafts only if the one that ended it is judged too: else its
place would be drawn from p, though one outcome of q was ruled out by hand. A grammar ends rows so;
their first dropped draft is judged at the position after the others, which the target has read.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.verification.layout import Positions


@dataclass(frozen=True, slots=True)
class SampledDraft:
    """What was drafted for a row by sampling.

    Attributes:
        tokens: int64 [n], on the device of the probabilities.
        probabilities: float32 [n, V], what each was sampled from, given those before it.
        block: verified by the block rule; else by the token rule.
    """

    tokens: torch.Tensor
    probabilities: torch.Tensor
    block: bool = False

    def upto(self, length: int) -> "SampledDraft":
        """Its first `length` tokens, or all of them if it has fewer."""
        return SampledDraft(self.tokens[:length], self.probabilities[:length], self.block)


class SpeculativeSampling:
    """A logits processor: leaves the plain sampler nothing to draw but what the rules emit.

    It comes last, so what it gets is the target's distribution after everything that a request
    asked for. Where a draft is kept, it leaves the draft alone; behind the kept ones the residual.

    Args:
        drafts: row -> its sampled drafts: those that were scheduled, or one more.
        positions: the step.
        top_k: int [T + B] and top_p: float [T + B], per position, or `None`; the sampler must not
            apply them again.
    """

    def __init__(
        self,
        drafts: Mapping[int, SampledDraft],
        positions: Positions,
        top_k: torch.Tensor | None,
        top_p: torch.Tensor | None,
    ) -> None:
        self._top_k, self._top_p = top_k, top_p
        rows = list(drafts)
        lengths = np.array([len(draft.tokens) for draft in drafts.values()])
        row = np.repeat(np.arange(len(rows)), lengths)
        offset = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        device = positions.row.device
        self._rows = torch.from_numpy(row).to(device)
        self._offsets = torch.from_numpy(offset).to(device)
        self._lengths = torch.from_numpy(lengths).to(device)
        self._block = torch.tensor([draft.block for draft in drafts.values()], device=device)
        self._has_block = any(draft.block for draft in drafts.values())
        starts = positions.starts[torch.tensor(rows, device=device)]
        self._positions = starts[self._rows] + self._offsets
        self._tokens = torch.cat([draft.tokens for draft in drafts.values()])
        self._q = torch.cat([draft.probabilities for draft in drafts.values()])

    def is_argmax_invariant(self) -> bool:
        """Whether greedy rows can do without it: they can, for theirs are never sampled drafts."""
        return True

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Rewrites the logits [T + B, V] of the drafted positions, in place where it can."""
        logits = compat.apply_top_k_top_p(logits, self._top_k, self._top_p)
        p = logits[self._positions].softmax(dim=-1, dtype=torch.float32)
        kept, weight = self._judge(p)
        self._leave_residuals(logits, p, kept, weight)
        keeps = self._offsets < kept[self._rows]
        at, token = self._positions[keeps], self._tokens[keeps]
        logits[at] = float("-inf")
        logits[at, token] = 0.0
        return logits

    def _judge(self, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """How many drafts each row keeps, int64 [N], and the weight of p after as many, [N].

        `p` is float32 [S, V], the target's distribution at each of the S drafts.
        """
        drawn = self._tokens[:, None]
        ratio = self._layout((p.gather(1, drawn) / self._q.gather(1, drawn)).squeeze(1))
        chance = torch.rand_like(ratio)
        kept = (chance < ratio).long().cumprod(1).sum(1)
        weight = torch.ones_like(ratio[:, 0])
        if self._has_block:
            in_block, weight_there = self._judge_blocks(p, ratio, chance)
            kept = torch.where(self._block, in_block, kept)
            weight = torch.where(self._block, weight_there, weight)
        return kept, weight

    def _judge_blocks(
        self, p: torch.Tensor, ratio: torch.Tensor, chance: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for every row by the block rule, from its ratios and draws [N, width]."""
        steps = [torch.ones_like(ratio[:, 0])]
        for column in ratio.unbind(1):
            steps.append((steps[-1] * column).clamp(max=1.0))
        weight = torch.stack(steps, dim=1)
        left = self._excess(p, weight[self._rows, self._offsets], self._q).sum(dim=1)
        # What is left at a row's i-th draft decides on the i - 1 before it.
        left = self._layout(left).roll(-1, 1)
        after = weight[:, 1:]
        # With nothing left and w = 1 the next draft is kept whatever comes of this one.
        success = torch.where(left > 0, left / (left + 1 - after), 0.0)
        count = torch.arange(1, ratio.shape[1] + 1, device=p.device)
        length = self._lengths[:, None]
        success = torch.where(count < length, success, after * (count == length))
        kept = ((chance < success) * count).amax(dim=1)
        return kept, weight.gather(1, kept[:, None]).squeeze(1)

    def _leave_residuals(
        self, logits: torch.Tensor, p: torch.Tensor, kept: torch.Tensor, weight: torch.Tensor
    ) -> None:
        """Writes the residual where a row's first dropped draft was."""
        dropped = self._offsets == kept[self._rows]
        residual = self._excess(p[dropped], weight[self._rows[dropped]], self._q[dropped])
        # Where p is q but for rounding, a drop in spite of it leaves p to be drawn.
        some = residual.sum(dim=1, keepdim=True) > 0
        at = self._positions[dropped]
        logits[at] = torch.where(some, residual.log(), logits[at])

    @staticmethod
    def _excess(p: torch.Tensor, weight: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """max(weight p - q, 0): float32 [n, V], with a weight for each of the n positions."""
        return (p * weight[:, None]).sub_(q).clamp_(min=0.0)

    def _layout(self, values: torch.Tensor) -> torch.Tensor:
        """A value for each draft, [S], row by row: [N, width], with 0 where a row has ended."""
        laid = values.new_zeros(len(self._lengths), int(self._lengths.max()))
        laid[self._rows, self._offsets] = values
        return laid
