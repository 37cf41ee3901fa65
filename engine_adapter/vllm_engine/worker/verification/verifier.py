"""Verification: which drafts a row keeps, and the token that follows them.

A step's positions are laid out as rows of a plain batch and given to vLLM's plain sampler, so
penalties, `min_tokens`, top-k, top-p and logprobs mean for a verified token what they mean for
any other. (vLLM's own verifier treats it apart, and 0.32 does it wrongly on CPU: the kernel that
repeats the temperatures writes them to an integer copy.) The first sample that differs from its
draft is emitted in its place. Two rules decide what is sampled:

- Exact match, for one-hot drafts: the target's distribution, whatever was drafted. Every emitted
  token is then the target's own sample, and a draft d is kept with the target's probability p(d),
  the acceptance probability of speculative sampling (arXiv 2211.17192) without its residual.
- Speculative sampling, for drafts that bring what they were sampled from: see `rejection`.

Rows are judged each by its own rule. Those at temperature 0 and those with a seed match exactly,
whatever they bring: the noise of a seeded request is keyed by its seed and the token's position,
so its text does not depend on proposer, k, batch, preemption or prefix cache.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.verification import logits_processors
from engine_adapter.vllm_engine.worker.verification.layout import Positions
from engine_adapter.vllm_engine.worker.verification.rejection import (
    SampledDraft,
    SpeculativeSampling,
)


class Verifier:
    """Stands where vLLM calls its rejection sampler.

    Args:
        sampler: vLLM's plain sampler.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        # Processed logprobs are read from the logits that speculative sampling rewrites. To match
        # exactly is as right, only slower.
        self._may_rewrite = not sampler.logprobs_mode.startswith("processed")
        self.generators: Mapping[int, torch.Generator] = {}
        """The generator of each position of the step that belongs to a seeded row."""

    def __call__(
        self,
        metadata: Any,
        sampled: Mapping[int, SampledDraft],
        logits: torch.Tensor,
        sampling_metadata: Any,
    ) -> Any:
        """Verifies a step's drafts; there is at least one, or one that was dropped.

        Args:
            metadata: vLLM's `SpecDecodeMetadata`: drafts [T] and their counts [B].
            sampled: row -> its drafts, if they were sampled, the first dropped one included;
                only rows that are neither greedy nor seeded.
            logits: [T + B, V], may be changed in place.
            sampling_metadata: per row [B].

        Returns:
            vLLM's `SamplerOutput` with the emitted tokens [B, most drafts + 1], padded with -1.
        """
        positions = Positions(metadata.num_draft_tokens, logits.device)
        plain = self._spread(sampling_metadata, positions, metadata.draft_token_ids)
        if sampled and self._may_rewrite:
            rule = SpeculativeSampling(sampled, positions, plain.top_k, plain.top_p)
            plain.logitsprocs.argmax_invariant.append(rule)
            plain = replace(plain, top_k=None, top_p=None)
        drawn = self._sampler(logits=logits, sampling_metadata=plain)
        samples = drawn.sampled_token_ids.squeeze(1)
        return compat.SamplerOutput(
            sampled_token_ids=positions.keep_agreeing(metadata.draft_token_ids, samples),
            logprobs_tensors=_pad(drawn.logprobs_tensors, positions),
        )

    def _spread(self, rows: Any, positions: Positions, drafts: torch.Tensor) -> Any:
        """The rows' sampling metadata as that of a plain batch of their positions."""
        outputs = rows.output_token_ids
        if not rows.no_penalties or rows.bad_words_token_ids:
            outputs = _outputs_at(rows.output_token_ids, positions, drafts.tolist())
        return replace(
            rows,
            temperature=positions.spread(rows.temperature),
            top_p=positions.spread(rows.top_p),
            top_k=positions.spread(rows.top_k),
            generators=self.generators,
            prompt_token_ids=positions.spread(rows.prompt_token_ids),
            frequency_penalties=positions.spread(rows.frequency_penalties),
            presence_penalties=positions.spread(rows.presence_penalties),
            repetition_penalties=positions.spread(rows.repetition_penalties),
            output_token_ids=outputs,
            allowed_token_ids_mask=positions.spread(rows.allowed_token_ids_mask),
            bad_words_token_ids={
                position: words
                for row, words in rows.bad_words_token_ids.items()
                for position, _ in positions.of_row(row)
            },
            logitsprocs=logits_processors.spread(rows.logitsprocs, positions),
            spec_token_ids=None,
        )


def _outputs_at(
    outputs: list[list[int]], positions: Positions, drafts: list[int]
) -> list[list[int]]:
    """The output that each position sees: the row's own, and the drafts before the position."""
    seen, first = [], 0
    for row, count in enumerate(positions.counts):
        drafted = drafts[first : first + count]
        seen += [outputs[row] + drafted[:offset] for offset in range(count + 1)]
        first += count
    return seen


def _pad(logprobs: Any, positions: Positions) -> Any:
    """Logprobs of [T + B] positions in the layout of the output: [B * width]."""
    if logprobs is None:
        return None
    every = positions.starts[:, None] + torch.arange(positions.width, device=logprobs[1].device)
    index = every.flatten().clamp_(max=len(logprobs[1]) - 1)
    return type(logprobs)(*(tensor[index] for tensor in logprobs[:3]))
