"""Speculative sampling: how many sampled drafts of a row are accepted, and the token after them.

Token rule, arXiv 2211.17192: a draft d, sampled from q, is accepted with probability
min(1, p(d) / q(d)). The first draft that is rejected is replaced by a sample of the residual,
norm(max(p - q, 0)).

Block rule, arXiv 2403.10444 (algorithm 2): all drafts of a row are verified together. With
w_0 = 1 and w_i = min(1, w_{i-1} p(d_i) / q(d_i)), the longest prefix is accepted whose own draw
succeeds: the whole row's with w_n, the first i drafts with s / (s + 1 - w_i), where s is the sum of
max(w_i p - q, 0) at the next position. After i drafts that are not all, the residual is
norm(max(w_i p - q, 0)). It accepts as many drafts as the token rule or more.

If a grammar truncates a row's drafts, the first rejected draft must still be verified. Otherwise
its position would be sampled from p although the grammar has already excluded one outcome of q,
which biases the output. That draft is verified at the position after the others, which the target
has read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.draft_options import samples, verifies_blocks
from engine_adapter.proposers.staging import joined, to_device

MAX_BYTES = 1 << 30
"""The largest float32 copy of logits that a call makes: as large as in vLLM's rejection sampler."""


def sampling_bytes(specs: Iterable[ProposerSpec], num_rows: int, vocab_size: int) -> int:
    """The memory of sampled drafts, from their draw to their verification; 0 if none samples.

    The logits of a step are copied: the copy has those of each draft, and of one more position of
    each row. While the rules read it, there are three distributions for each draft: the one that it
    was drawn from, the target's logits, and their distribution. Then there are four more for each
    row, at its first rejected draft. Under the block rule there is a residual for each draft before
    that.
    """
    vectors_per_row = 0
    for spec in filter(samples, specs):
        k = spec.num_speculative_tokens
        vectors_per_row = max(vectors_per_row, 4 * k + 5, 5 * k + 1 if verifies_blocks(spec) else 0)
    return vectors_per_row * num_rows * vocab_size * torch.float32.itemsize


def drafted_bytes(num_rows: int, num_drafts: int, vocab_size: int, dtype: torch.dtype) -> int:
    """What a step of these rows takes beyond one without drafts: `num_drafts` are those of all.

    The logits of the drafts, and the float32 copy of a part that options need.
    """
    copied_bytes = min((num_rows + num_drafts) * vocab_size * torch.float32.itemsize, MAX_BYTES)
    return num_drafts * vocab_size * dtype.itemsize + copied_bytes


@dataclass(frozen=True, slots=True)
class SampledDraft:
    """The draft tokens of a row that were sampled, with their distributions.

    Attributes:
        tokens: int64 [n], on the device.
        probabilities: float32 [n, V], q: the distribution that each was sampled from, given those
            before it.
        block: verified by the block rule; otherwise by the token rule.
    """

    tokens: torch.Tensor
    probabilities: torch.Tensor
    block: bool = False

    def truncated(self, length: int) -> "SampledDraft":
        """Its first `length` tokens, or all of them if it has fewer."""
        return SampledDraft(self.tokens[:length], self.probabilities[:length], self.block)


class SpeculativeSampling:
    """Leaves the noise of the sampler only the tokens that the rules emit.

    Its input is the target's distribution after every option of the request. At an accepted draft
    only that token remains; after the accepted drafts the residual.

    Args:
        drafts: row -> its sampled drafts: those that were scheduled, or one more.
        starts: int64 [B], the first position of each row.
        device: of the logits.
    """

    def __init__(
        self,
        drafts: Mapping[int, SampledDraft],
        starts: npt.NDArray[np.integer[Any]],
        device: torch.device,
    ) -> None:
        # N rows with S drafts in all; `first_drafts` has the first draft of each among all.
        lengths = np.array([len(draft.tokens) for draft in drafts.values()])
        first_drafts = np.cumsum(lengths) - lengths
        row = np.repeat(np.arange(len(drafts)), lengths)
        offset = np.arange(len(row)) - first_drafts[row]
        block = np.array([draft.block for draft in drafts.values()])
        self._width = int(lengths.max())
        self._has_block = bool(block.any())
        staged = to_device(
            device,
            row,
            offset,
            lengths,
            first_drafts,
            starts[list(drafts)][row] + offset,
            block,
        )
        self._rows, self._offsets, self._lengths, self._first_drafts = staged[:4]
        self._positions, self._block = staged[4:]
        self._tokens = torch.cat([draft.tokens for draft in drafts.values()])
        self._q = joined([draft.probabilities for draft in drafts.values()])

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Rewrites the logits [T + B, V] of the drafted positions, in place where it can."""
        drafted = logits[self._positions]
        p = drafted.softmax(dim=-1, dtype=torch.float32)
        num_accepted, weight = self._accept(p)
        self._write_residuals(drafted, p, num_accepted, weight)
        # Every draft is written, accepted or not: to select them would wait for the device.
        accepted, token = (self._offsets < num_accepted[self._rows])[:, None], self._tokens[:, None]
        at_token = drafted.gather(1, token).masked_fill_(accepted, 0.0)
        drafted.masked_fill_(accepted, float("-inf")).scatter_(1, token, at_token)
        logits[self._positions] = drafted
        return logits

    def _accept(self, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The number of accepted drafts of each row, and the weight w of p after them.

        Args:
            p: float32 [S, V], the target's distribution at each of the S drafts.

        Returns:
            int64 [N] and float32 [N]; the weight is 1 under the token rule.
        """
        drafted = self._tokens[:, None]
        ratio = self._pad_rows((p.gather(1, drafted) / self._q.gather(1, drafted)).squeeze(1))
        uniform = torch.rand_like(ratio)
        num_accepted = (uniform < ratio).long().cumprod(1).sum(1)
        weight = torch.ones_like(ratio[:, 0])
        if self._has_block:
            accepted_in_block, block_weight = self._accept_blocks(p, ratio, uniform)
            num_accepted = torch.where(self._block, accepted_in_block, num_accepted)
            weight = torch.where(self._block, block_weight, weight)
        return num_accepted, weight

    def _accept_blocks(
        self, p: torch.Tensor, ratio: torch.Tensor, uniform: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for every row by the block rule, from its ratios and draws [N, width]."""
        weights = [torch.ones_like(ratio[:, 0])]
        for column in ratio.unbind(1):
            weights.append((weights[-1] * column).clamp(max=1.0))
        weight = torch.stack(weights, dim=1)
        residual = self._residual(p, weight[self._rows, self._offsets], self._q)
        # The residual mass at a row's i-th draft decides on the i - 1 drafts before it.
        residual_mass = self._pad_rows(residual.sum(dim=1)).roll(-1, 1)
        next_weight = weight[:, 1:]
        # Without residual mass and with w = 1, the next draft is accepted in any case.
        success = torch.where(
            residual_mass > 0, residual_mass / (residual_mass + 1 - next_weight), 0.0
        )
        count = torch.arange(1, ratio.shape[1] + 1, device=p.device)
        length = self._lengths[:, None]
        success = torch.where(count < length, success, next_weight * (count == length))
        num_accepted = ((uniform < success) * count).amax(dim=1)
        return num_accepted, weight.gather(1, num_accepted[:, None]).squeeze(1)

    def _write_residuals(
        self,
        drafted: torch.Tensor,
        p: torch.Tensor,
        num_accepted: torch.Tensor,
        weight: torch.Tensor,
    ) -> None:
        """Writes the residual at the first rejected draft of each row into `drafted`, [S, V].

        A row without one gets it at its last draft, where it means nothing: that is accepted.
        """
        rejected = self._first_drafts + torch.minimum(num_accepted, self._lengths - 1)
        residual = self._residual(p[rejected], weight, self._q[rejected])
        # Where p equals q but for rounding, a rejected draft is replaced by a sample of p.
        has_residual = residual.sum(dim=1, keepdim=True) > 0
        drafted[rejected] = torch.where(has_residual, residual.log(), drafted[rejected])

    @staticmethod
    def _residual(p: torch.Tensor, weight: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """max(weight p - q, 0): float32 [n, V], with a weight for each of the n positions."""
        return (p * weight[:, None]).sub_(q).clamp_(min=0.0)

    def _pad_rows(self, values: torch.Tensor) -> torch.Tensor:
        """A value for each draft, [S], as [N, width]: 0 after the end of a row."""
        padded = values.new_zeros(len(self._lengths), self._width)
        padded[self._rows, self._offsets] = values
        return padded
