"""Verification of one-hot drafts: sample the target at every drafted position, keep what agrees.

A draft is kept exactly if the target, sampled there, gives it; the first sample that differs is
emitted in its place. So every emitted token is the target's own sample, whatever drafted, and a
draft d is kept with the target's probability p(d): for one-hot drafts that is the acceptance
probability of speculative sampling (arXiv 2211.17192), without its residual distribution.

A step's positions are laid out as rows of a plain batch and given to vLLM's plain sampler, so
penalties, `min_tokens`, top-k, top-p and logprobs mean for a verified token what they mean for
any other. (vLLM's own verifier treats it apart, and 0.32 does it wrongly on CPU: the kernel that
repeats the temperatures writes them to an integer copy.)

The noise of a seeded request is keyed by its seed and the token's position, so its text does not
depend on proposer, k, batch, preemption or prefix cache: it is the text of plain decoding.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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


class Positions:
    """A verification step laid out as a plain batch: each row's drafted positions, then one more.

    Args:
        counts: B draft counts.
        device: where the index tensors are wanted.

    Attributes:
        counts: the draft counts.
        starts: int64 [B], each row's first position.
        row: int64 [T + B], the row that each position belongs to.
        offset: int64 [T + B], how many drafts stand before the position in its row.
        width: the most positions of a row.
    """

    def __init__(self, counts: list[int], device: torch.device) -> None:
        sizes = torch.tensor(counts, device=device) + 1
        total = sum(counts) + len(counts)
        self.counts = counts
        self.starts = sizes.cumsum(0) - sizes
        rows = torch.arange(len(counts), device=device)
        self.row = rows.repeat_interleave(sizes, output_size=total)
        self.offset = torch.arange(total, device=device) - self.starts[self.row]
        self.width = max(counts) + 1

    def spread(self, values: torch.Tensor | None) -> torch.Tensor | None:
        """Per-row values [B, ...] as per-position values [T + B, ...]."""
        return None if values is None else values[self.row]

    def of_row(self, row: int) -> Iterator[tuple[int, int]]:
        """The (position, offset) pairs of a row."""
        start = sum(self.counts[:row]) + row
        return ((start + offset, offset) for offset in range(self.counts[row] + 1))

    def keep_agreeing(self, drafts: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
        """What each row emits.

        Args:
            drafts: int [T], the rows' drafts one after the other.
            samples: int [T + B], the target's sample at each position.

        Returns:
            int32 [B, width], padded with -1: the samples up to the first that differs from its
            draft, or all of them.
        """
        shape = (len(self.counts), self.width)
        output = torch.full(shape, -1, dtype=torch.int32, device=samples.device)
        output[self.row, self.offset] = samples.int()
        drafted = self.offset < torch.tensor(self.counts, device=samples.device)[self.row]
        differs = torch.zeros(shape, dtype=torch.int32, device=samples.device)
        differs[self.row[drafted], self.offset[drafted]] = (samples[drafted] != drafts).int()
        behind = differs.cumsum(1) - differs > 0
        return output.masked_fill_(behind, -1)


@dataclass(frozen=True, slots=True)
class _Forbidden:
    """A logits processor: the tokens that `min_tokens` forbids, by position."""

    positions: list[int]
    tokens: list[int]

    def is_argmax_invariant(self) -> bool:
        return False

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        logits[self.positions, self.tokens] = float("-inf")
        return logits


class ExactMatchVerifier:
    """Stands where vLLM calls its rejection sampler.

    Args:
        sampler: vLLM's plain sampler.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.generators: Mapping[int, torch.Generator] = {}
        """The generator of each position of the step that belongs to a seeded row."""

    def __call__(
        self,
        metadata: Any,
        draft_probs: torch.Tensor | None,
        logits: torch.Tensor,
        sampling_metadata: Any,
    ) -> Any:
        """Verifies a step's drafts; there is at least one.

        Args:
            metadata: vLLM's `SpecDecodeMetadata`: drafts [T] and their counts [B].
            draft_probs: must be `None`: drafts are one-hot.
            logits: [T + B, V], may be changed in place.
            sampling_metadata: per row [B].

        Returns:
            vLLM's `SamplerOutput` with the emitted tokens [B, most drafts + 1], padded with -1.
        """
        assert draft_probs is None, "a draft that was sampled needs another rule"
        positions = Positions(metadata.num_draft_tokens, logits.device)
        plain = self._sampler(
            logits=logits,
            sampling_metadata=self._spread(sampling_metadata, positions, metadata.draft_token_ids),
        )
        samples = plain.sampled_token_ids.squeeze(1)
        return compat.SamplerOutput(
            sampled_token_ids=positions.keep_agreeing(metadata.draft_token_ids, samples),
            logprobs_tensors=_pad(plain.logprobs_tensors, positions),
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
            logitsprocs=compat.LogitsProcessors(_min_tokens(rows.logitsprocs, positions)),
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


def _min_tokens(processors: Any, positions: Positions) -> list[_Forbidden]:
    """`min_tokens` at each position: vLLM's processor knows where the rows begin."""
    forbidden = _Forbidden([], [])
    for processor in processors.non_argmax_invariant:
        for row, (least, output, stops, _) in processor.min_toks.items():
            for position, offset in positions.of_row(row):
                if len(output) + offset < least:
                    forbidden.positions.extend([position] * len(stops))
                    forbidden.tokens.extend(stops)
    return [forbidden] if forbidden.positions else []


def _pad(logprobs: Any, positions: Positions) -> Any:
    """Logprobs of [T + B] positions in the layout of the output: [B * width]."""
    if logprobs is None:
        return None
    every = positions.starts[:, None] + torch.arange(positions.width, device=logprobs[1].device)
    index = every.flatten().clamp_(max=len(logprobs[1]) - 1)
    return type(logprobs)(*(tensor[index] for tensor in logprobs[:3]))
