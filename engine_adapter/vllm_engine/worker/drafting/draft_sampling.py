"""Sampled drafts: how they are drawn, and what is kept of them until they are verified.

A row without a seed draws its drafts with noise of their own, and each comes with the distribution
it was drawn from. A row with a seed draws with the noise of the position that it drafts for, which
the target will use there too: draft and target then agree wherever their distributions let them
(the coupling of arXiv 2408.07978). What is emitted is the target's own sample, so such a
row is verified by exact match, and its text stays that of plain decoding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.draft_options import samples
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.verification.layout import noise_key
from engine_adapter.vllm_engine.worker.verification.rejection import SampledDraft


@dataclass(frozen=True, slots=True)
class RowSampler:
    """A `DraftSampler` over vLLM's plain sampler.

    Attributes:
        sampler: vLLM's.
        temperature: float32 [R], on the CPU; 0 is a greedy row.
        top_k: int32 [R], top_p: float32 [R]: as the requests ask for.
        seeds: each row's seed.
        num_tokens: int64 [R], the committed tokens before the drafts.
    """

    sampler: Any
    temperature: npt.NDArray[np.float32]
    top_k: npt.NDArray[np.int32]
    top_p: npt.NDArray[np.float32]
    seeds: Sequence[int | None]
    num_tokens: npt.NDArray[np.int64]

    def draw(
        self, logits: torch.Tensor, rows: npt.NDArray[np.intp], depth: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `DraftSampler.draw`."""
        temperature = torch.from_numpy(self.temperature[rows]).to(logits.device)[:, None]
        top_k, top_p = self.top_k[rows], self.top_p[rows]
        likeliest = logits.argmax(dim=-1)
        scaled = compat.apply_top_k_top_p(
            logits.float() / temperature.where(temperature > 0, 1.0),
            self._limit(top_k, top_k < logits.shape[1], logits.device),
            self._limit(top_p, top_p < 1, logits.device),
        )
        probabilities = scaled.softmax(dim=-1, dtype=torch.float32)
        generators = {
            i: torch.Generator(logits.device).manual_seed(
                noise_key(seed, int(self.num_tokens[row]) + depth)
            )
            for i, row in enumerate(rows)
            if (seed := self.seeds[row]) is not None
        }
        drawn, _ = self.sampler.topk_topp_sampler(scaled, generators, None, None)
        return torch.where(temperature[:, 0] > 0, drawn.long(), likeliest), probabilities

    def select(self, index: npt.NDArray[np.intp]) -> "RowSampler":
        """See `DraftSampler.select`."""
        return RowSampler(
            self.sampler,
            self.temperature[index],
            self.top_k[index],
            self.top_p[index],
            [self.seeds[i] for i in index],
            self.num_tokens[index],
        )

    @property
    def judged(self) -> npt.NDArray[np.bool_]:
        """The rows whose drafts are verified by what they were drawn from, bool [R]."""
        unseeded = np.array([seed is None for seed in self.seeds], np.bool_)
        return unseeded & (self.temperature > 0)

    @staticmethod
    def _limit(
        values: npt.NDArray[Any], binds: npt.NDArray[np.bool_], device: torch.device
    ) -> torch.Tensor | None:
        return torch.from_numpy(values).to(device) if binds.any() else None


class SampledDrafts:
    """The drafts of a batch that were sampled, by request and position.

    Args:
        runner: vLLM's; its batch and its sampler are used.
        specs: the proposers.
    """

    def __init__(self, runner: Any, specs: Sequence[ProposerSpec]) -> None:
        self._runner = runner
        # Of those that sample, whether the block rule verifies their drafts.
        self._block: dict[str, bool] = {}
        for spec in specs:
            self.add(spec)
        # Request id -> the committed tokens before the drafts, and the drafts.
        self._kept: dict[str, tuple[int, SampledDraft]] = {}

    def add(self, spec: ProposerSpec) -> None:
        """Takes in a proposer that was loaded later, or anew under the same name."""
        self._block.pop(spec.name, None)
        if samples(spec):
            self._block[spec.name] = spec.options["verification"] == "block"

    def ask(self, name: str, batch: DraftBatch) -> DraftBatch:
        """The batch as the proposer is to see it: with a sampler, if it samples its drafts."""
        rows, known = batch.rows, self._runner.input_batch
        if name not in self._block or not known.temperature_cpu[rows].any():
            return batch
        seeded = known.generators
        requests = self._runner.requests
        seeds = [
            requests[request_id].sampling_params.seed if row in seeded else None
            for row, request_id in zip(rows.tolist(), batch.request_ids, strict=True)
        ]
        sampler = RowSampler(
            self._runner.sampler,
            known.temperature_cpu[rows],
            known.top_k_cpu[rows],
            known.top_p_cpu[rows],
            seeds,
            batch.num_tokens,
        )
        return replace(batch, sampling=sampler)

    def keep(self, name: str, batch: DraftBatch, drafts: Drafts) -> None:
        """Keeps what a proposer drafted, as far as it is needed to verify it."""
        if drafts.probabilities is None or not isinstance(batch.sampling, RowSampler):
            return
        for i in np.flatnonzero(batch.sampling.judged):
            probabilities = drafts.probabilities[i]
            if probabilities is not None and len(probabilities):
                tokens = torch.tensor(drafts.tokens[i], device=probabilities.device)
                draft = SampledDraft(tokens, probabilities, self._block[name])
                self._kept[batch.request_ids[i]] = int(batch.num_tokens[i]), draft

    def take(self, counts: Sequence[int] | None) -> Mapping[int, SampledDraft]:
        """Row -> its sampled drafts, for the step that verifies `counts` drafts of each row.

        Of drafts that were not scheduled, the first is among them: it must be judged, since it may
        be the reason (see `rejection`).
        """
        if not self._kept:
            return {}
        batch, taken = self._runner.input_batch, {}
        for row, request_id in enumerate(batch.req_ids):
            if (kept := self._kept.pop(request_id, None)) is not None:
                position, draft = kept
                if position == batch.num_tokens_no_spec[row]:
                    taken[row] = draft.upto((counts[row] if counts else 0) + 1)
        return taken

    def forget(self, request_ids: Sequence[str]) -> None:
        """The requests ended, or were preempted, which drops their drafts."""
        for request_id in request_ids:
            self._kept.pop(request_id, None)
