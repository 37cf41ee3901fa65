"""Verification of one-hot drafts: sample the target at every drafted position, keep what agrees.

A draft is kept exactly if the target, sampled there, gives it; the first sample that differs is
emitted in its place. So every emitted token is the target's own sample, whatever drafted, and a
draft d is kept with the target's probability p(d): for one-hot drafts that is the acceptance
probability of speculative sampling (arXiv 2211.17192), without its residual distribution.

The noise of a seeded request is keyed by its seed and the token's position, so its text does not
depend on proposer, k, batch, preemption or prefix cache: it is the text of plain decoding.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from engine_adapter.vllm_engine import compat

_MASK = (1 << 64) - 1


def noise_key(seed: int, position: int) -> int:
    """32 well-mixed bits of (seed, position); CPU generators use no more. SplitMix64's finisher."""
    mixed = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) >> 32


def keep_agreeing(
    drafts: torch.Tensor, samples: torch.Tensor, bonus: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    """What each row emits.

    Args:
        drafts: int [T], the rows' drafts one after the other.
        samples: int [T], the target's sample at each draft's position.
        bonus: int [B], the target's sample behind each row's last draft.
        counts: int64 [B], the rows' draft counts; they sum to T.

    Returns:
        int32 [B, max(counts) + 1], padded with -1: the samples up to the first that differs
        from its draft, or all of them and the bonus.
    """
    rows = torch.arange(len(counts), device=drafts.device)
    row = torch.repeat_interleave(rows, counts, output_size=len(drafts))
    column = torch.arange(len(drafts), device=drafts.device) - (counts.cumsum(0) - counts)[row]
    shape = (len(counts), int(counts.max()) + 1)
    differs = torch.zeros(shape, dtype=torch.int32, device=drafts.device)
    differs[row, column] = (samples != drafts).int()
    output = torch.full(shape, -1, dtype=torch.int32, device=drafts.device)
    output[row, column] = samples.int()
    output[rows, counts] = bonus.int()
    # A position is emitted if nothing before it differs.
    behind = differs.cumsum(1) - differs > 0
    return output.masked_fill_(behind, -1)


class ExactMatchVerifier(compat.RejectionSampler):
    """In the place of vLLM's rejection sampler; only called in steps that hold drafts."""

    draft_generators: Mapping[int, torch.Generator] = {}
    """The generator of each drafted position of a seeded row, by index into the T drafts."""

    def forward(
        self,
        metadata: Any,
        draft_probs: torch.Tensor | None,
        logits: torch.Tensor,
        sampling_metadata: Any,
    ) -> Any:
        """Verifies a step's drafts.

        Args:
            metadata: vLLM's `SpecDecodeMetadata`: drafts [T], their counts [B], index tensors.
            draft_probs: must be `None`: drafts are one-hot.
            logits: [T + B, V], may be changed in place.
            sampling_metadata: per row [B].

        Returns:
            vLLM's `SamplerOutput` with the emitted tokens [B, max count + 1], padded with -1.
        """
        assert draft_probs is None, "a draft that was sampled needs another rule"
        wants_logprobs = sampling_metadata.max_num_logprobs is not None
        processed = self.is_processed_logprobs_mode
        bonus = self.sampler(
            logits=logits[metadata.bonus_logits_indices],
            sampling_metadata=replace(
                sampling_metadata, max_num_logprobs=-1 if wants_logprobs else None
            ),
            predict_bonus_token=True,
            logprobs_mode_override="processed_logits" if processed else "raw_logits",
        )
        raw = logits[metadata.target_logits_indices].to(torch.float32)
        target = self.apply_logits_processors(
            raw.clone() if wants_logprobs and not processed else raw, sampling_metadata, metadata
        )
        counts = torch.tensor(metadata.num_draft_tokens, device=target.device)
        if not sampling_metadata.all_greedy:
            target = _constrain(target, counts, sampling_metadata)
        output = keep_agreeing(
            metadata.draft_token_ids,
            self._sample(target, counts, sampling_metadata),
            bonus.sampled_token_ids.squeeze(1),
            counts,
        )
        logprobs = None
        if wants_logprobs:
            logprobs = self._get_logprobs_tensors(
                sampling_metadata.max_num_logprobs,
                metadata,
                logits,
                target if processed else raw,
                bonus.logprobs_tensors.logprobs,
                output,
            )
        return compat.SamplerOutput(sampled_token_ids=output, logprobs_tensors=logprobs)

    def _sample(
        self, target: torch.Tensor, counts: torch.Tensor, sampling_metadata: Any
    ) -> torch.Tensor:
        """The target's sample at each drafted position, int64 [T], from processed logits."""
        if sampling_metadata.all_greedy:
            return target.argmax(dim=-1)
        greedy = None if sampling_metadata.all_random else target.argmax(dim=-1)
        sampled, _ = self.sampler.topk_topp_sampler(target, self.draft_generators, None, None)
        if greedy is None:
            return sampled
        return torch.where(_of_rows(sampling_metadata.temperature, counts, target) == 0, greedy, sampled)


def _of_rows(values: torch.Tensor, counts: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The rows' values [B], repeated for each of their drafts: [T]."""
    return values.repeat_interleave(counts, output_size=len(target))


def _constrain(target: torch.Tensor, counts: torch.Tensor, sampling_metadata: Any) -> torch.Tensor:
    """Temperature, top-k and top-p of the rows on their drafts' logits [T, V], in place.

    vLLM 0.32 has a function for this. Its CPU kernel converts the expanded temperatures to a
    copy in integers and leaves the original uninitialised, so verified tokens are sampled at a
    temperature of chance.
    """
    temperature = _of_rows(sampling_metadata.temperature, counts, target)
    target.div_(torch.where(temperature == 0, 1.0, temperature).unsqueeze(1))
    top_k, top_p = sampling_metadata.top_k, sampling_metadata.top_p
    constrained: torch.Tensor = compat.apply_top_k_top_p(
        target,
        None if top_k is None else _of_rows(top_k, counts, target),
        None if top_p is None else _of_rows(top_p, counts, target),
    )
    return constrained
