"""Verification: which drafts of a row are accepted, and the token that follows them.

A step's positions are laid out as the rows of a plain batch and given to vLLM's plain sampler, so
penalties, `min_tokens`, top-k, top-p and logprobs mean for a verified token what they mean for
any other. (vLLM's own verifier handles these apart, and it does so wrongly on CPU: the
kernel that repeats the temperatures writes them to an integer copy.) The first sample that differs
from its draft is emitted instead of the draft. Two rules decide what is sampled:

- Exact match, for one-hot drafts: the sample comes from the target's distribution and does not
  depend on the draft. Every emitted token is then the target's own sample, and a draft d is
  accepted with the target's probability p(d), the acceptance probability of speculative sampling
  (arXiv 2211.17192) without its residual.
- Speculative sampling, for drafts that come with the distributions they were sampled from: see
  `rejection`.

Each row is verified by its own rule. Rows at temperature 0 and rows with a seed match exactly,
with sampled drafts too: the noise of a seeded request is seeded by its seed and the token's
position, so its text does not depend on proposer, k, batch, preemption or prefix cache.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.verification import logits_processors
from engine_adapter.vllm_engine.worker.verification.layout import VerifyLayout
from engine_adapter.vllm_engine.worker.verification.rejection import (
    SampledDraft,
    SpeculativeSampling,
)


@dataclass(frozen=True, slots=True)
class VerifyInputs:
    """What a step's verification needs beside vLLM's own metadata.

    Attributes:
        drafts: row -> its sampled drafts, with the first one that was dropped before the step;
            only rows that are neither greedy nor seeded.
        generators: position of the step -> its generator; only positions of seeded rows.
    """

    drafts: Mapping[int, SampledDraft] = field(default_factory=dict)
    generators: Mapping[int, torch.Generator] = field(default_factory=dict)


class Verifier:
    """Replaces vLLM's rejection sampler.

    Args:
        sampler: vLLM's plain sampler.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        # Processed logprobs are read from the logits that speculative sampling rewrites. Exact
        # match is as correct, and only slower.
        self._may_rewrite = not sampler.logprobs_mode.startswith("processed")
        self._layout: VerifyLayout | None = None

    def __call__(
        self,
        metadata: Any,
        inputs: VerifyInputs | None,
        logits: torch.Tensor,
        sampling_metadata: Any,
    ) -> Any:
        """Verifies a step's drafts; there is at least one, or one that was dropped.

        Args:
            metadata: vLLM's `SpecDecodeMetadata`: drafts [T] and their counts [B].
            inputs: sampled drafts and generators; `None` in a warm-up call of vLLM.
            logits: [T + B, V], may be changed in place.
            sampling_metadata: per row [B]; its `spec_token_ids` are the drafts on the CPU.

        Returns:
            vLLM's `SamplerOutput` with the emitted tokens [B, most drafts + 1], padded with -1.
        """
        inputs = inputs or VerifyInputs()
        layout = self._layout_of(metadata.num_draft_tokens, logits.device)
        plain = _expand(sampling_metadata, layout, inputs.generators)
        if inputs.drafts and self._may_rewrite:
            rule = SpeculativeSampling(
                inputs.drafts, layout.starts_on_cpu, layout.device, plain.top_k, plain.top_p
            )
            plain.logitsprocs.argmax_invariant.append(rule)
            plain = replace(plain, top_k=None, top_p=None)
        output = self._sampler(logits=logits, sampling_metadata=plain)
        samples = output.sampled_token_ids.squeeze(1)
        return compat.SamplerOutput(
            sampled_token_ids=layout.accept_matching(metadata.draft_token_ids, samples),
            logprobs_tensors=_pad_logprobs(output.logprobs_tensors, layout),
        )

    def _layout_of(self, counts: list[int], device: torch.device) -> VerifyLayout:
        """The layout of a step. Steps with the same counts follow each other often."""
        if self._layout is None or self._layout.num_draft_tokens != counts:
            self._layout = VerifyLayout(counts, device)
        return self._layout


def _expand(rows: Any, layout: VerifyLayout, generators: Mapping[int, torch.Generator]) -> Any:
    """The rows' sampling metadata as that of a plain batch of their positions."""
    outputs = rows.output_token_ids
    if logits_processors.reads_outputs(rows):
        outputs = _outputs_before(rows.output_token_ids, layout, rows.spec_token_ids)
    return logits_processors.expand_metadata(rows, layout, outputs, generators)


def _outputs_before(
    outputs: list[list[int]], layout: VerifyLayout, drafts: list[list[int]]
) -> list[list[int]]:
    """The output before each position: the row's own, and the drafts before the position."""
    return [
        outputs[row] + drafts[row][:offset]
        for row, count in enumerate(layout.num_draft_tokens)
        for offset in range(count + 1)
    ]


def _pad_logprobs(logprobs: Any, layout: VerifyLayout) -> Any:
    """Logprobs of [T + B] positions in the layout of the output: [B * width]."""
    if logprobs is None:
        return None
    positions = layout.starts[:, None] + torch.arange(layout.width, device=logprobs[1].device)
    index = positions.flatten().clamp_(max=len(logprobs[1]) - 1)
    return type(logprobs)(*(tensor[index] for tensor in logprobs[:3]))
