"""Verification: every emitted token is the target's own sample.

vLLM's plain sampler applies a request's options at every position that a step reads, and takes the
noise of a position from the request's seed and the position. So what it samples at a position is
what plain decoding samples there, whatever was drafted: drafts are accepted up to the first that
differs from the sample in its place. Nothing here waits for the device.

vLLM's own rejection sampler accepts as often, but draws noise of its own for every draft: with it,
the text of a request with a seed would depend on the drafts.
"""

from dataclasses import replace
from typing import Any

import torch

from engine_adapter.vllm_engine import compat


class ExactMatch:
    """Replaces vLLM's rejection sampler.

    Args:
        sampler: the plain sampler, a `RuleSampler`. Plain rows need no more than their tokens.

    Attributes:
        enable_adaptive_verification: false; vLLM asks before it warms up its kernels.
    """

    enable_adaptive_verification = False

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __call__(
        self,
        logits: torch.Tensor,
        input_batch: Any,
        draft_logits: torch.Tensor | None = None,
        invalid_drafts: torch.Tensor | None = None,
    ) -> Any:
        """Verifies a step's drafts; there is at least one.

        Args:
            logits: [T + B, V], of each row's drafts and of one token more; may be changed in place.
            input_batch: vLLM's `InputBatch`.
            draft_logits: of sampled drafts; not used.
            invalid_drafts: bool [T + B], the inputs that must not be accepted, if there are any.

        Returns:
            vLLM's `SamplerOutput` with the emitted tokens, [B, most drafts + 1], and their counts.
        """
        output = None
        if self._sampler.are_plain(input_batch.idx_mapping_np):
            samples = logits.argmax(dim=1)
        else:
            output = self._sampler(logits, input_batch)
            samples = output.sampled_token_ids.view(-1)
        inputs = input_batch.input_ids[input_batch.logits_indices]
        if invalid_drafts is not None:
            inputs = inputs.masked_fill(invalid_drafts, -1)
        width = int(input_batch.num_draft_tokens_per_req.max()) + 1
        emitted, counts = accept_matching(samples, inputs, input_batch.cu_num_logits, width)
        num_sampled, num_rejected = compat.v2_input_batch.get_num_sampled_and_rejected(
            counts,
            input_batch.seq_lens,
            input_batch.cu_num_logits,
            input_batch.idx_mapping,
            self._sampler.req_states.prefill_len.gpu,
        )
        fields = {
            "sampled_token_ids": emitted,
            "num_sampled": num_sampled,
            "num_rejected": num_rejected,
        }
        if output is None:
            return compat.V2SamplerOutput(logprobs_tensors=None, num_nans=None, **fields)
        return replace(output, **fields)


def accept_matching(
    samples: torch.Tensor, inputs: torch.Tensor, starts: torch.Tensor, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens that B rows emit: their samples up to the first that differs from its draft.

    Args:
        samples: int64 [T + B], the token sampled at each position, row after row.
        inputs: int [T + B], the token read at each position: the newest of the row, then its
            drafts.
        starts: int32 [B + 1], the first position of each row, and T + B.
        width: the largest number of positions of a row.

    Returns:
        int64 [B, width], of which the first are emitted, and int32 [B], how many.
    """
    if len(samples) == (len(starts) - 1) * width:  # as many in every row: nothing is gathered
        placed = samples.view(-1, width)
        agrees = placed[:, :-1] == inputs.view(-1, width)[:, 1:]
        return placed, agrees.cumprod(1).sum(1, dtype=torch.int32) + 1
    offset = torch.arange(width, device=samples.device)
    last_places = (starts[1:] - 1)[:, None]
    places = torch.minimum(starts[:-1, None] + offset, last_places)
    placed = samples[places]
    has_draft = offset[:-1] < (starts[1:] - starts[:-1] - 1)[:, None]
    agrees = (placed[:, :-1] == inputs[places[:, 1:]]) & has_draft
    return placed, agrees.cumprod(1).sum(1, dtype=torch.int32) + 1
