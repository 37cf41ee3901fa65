"""Sampled drafts: how they are sampled, and where they are stored until they are verified.

A row without a seed samples its drafts with noise of its own, and each draft comes with the
distribution it was sampled from. A row with a seed samples with the noise of the position that it
drafts for, which the target will use there too: draft and target then agree wherever their
distributions let them (the coupling of arXiv 2408.07978). The emitted token is the target's own
sample, so such a row is verified by exact match, and its text stays that of plain decoding.
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
from engine_adapter.vllm_engine.worker.verification.rejection import SampledDraft
from engine_adapter.vllm_engine.worker.verification.seeding import position_seed


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
        greedy = logits.argmax(dim=-1)
        scaled = compat.apply_top_k_top_p(
            logits.float() / temperature.where(temperature > 0, 1.0),
            self._limit(top_k, top_k < logits.shape[1], logits.device),
            self._limit(top_p, top_p < 1, logits.device),
        )
        probabilities = scaled.softmax(dim=-1, dtype=torch.float32)
        generators = {
            i: torch.Generator(logits.device).manual_seed(
                position_seed(seed, int(self.num_tokens[row]) + depth)
            )
            for i, row in enumerate(rows)
            if (seed := self.seeds[row]) is not None
        }
        sampled, _ = self.sampler.topk_topp_sampler(scaled, generators, None, None)
        return torch.where(temperature[:, 0] > 0, sampled.long(), greedy), probabilities

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
    def needs_probabilities(self) -> npt.NDArray[np.bool_]:
        """The rows whose drafts are verified with the distributions they came from, bool [R]."""
        unseeded = np.array([seed is None for seed in self.seeds], np.bool_)
        return unseeded & (self.temperature > 0)

    @staticmethod
    def _limit(
        values: npt.NDArray[Any], binds: npt.NDArray[np.bool_], device: torch.device
    ) -> torch.Tensor | None:
        return torch.from_numpy(values).to(device) if binds.any() else None


class SampledDraftStore:
    """The sampled drafts of the last step of each request, until they are verified.

    Args:
        runner: vLLM's; its batch and its sampler are used.
        specs: the proposers.
    """

    def __init__(self, runner: Any, specs: Sequence[ProposerSpec]) -> None:
        self._runner = runner
        # Proposer -> whether the block rule verifies its drafts; only proposers that sample.
        self._uses_block: dict[str, bool] = {}
        for spec in specs:
            self.add_proposer(spec)
        # Request id -> the number of committed tokens before the drafts, and the drafts.
        self._stored: dict[str, tuple[int, SampledDraft]] = {}

    def add_proposer(self, spec: ProposerSpec) -> None:
        """Adds a proposer that was loaded later, or again under the same name."""
        self._uses_block.pop(spec.name, None)
        if samples(spec):
            self._uses_block[spec.name] = spec.options["verification"] == "block"

    def with_sampler(self, name: str, batch: DraftBatch) -> DraftBatch:
        """The batch with a sampler, if the proposer samples and a row is not greedy."""
        rows, known = batch.rows, self._runner.input_batch
        if name not in self._uses_block or not known.temperature_cpu[rows].any():
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

    def store(self, name: str, batch: DraftBatch, drafts: Drafts) -> None:
        """Stores the drafts of a proposer whose distributions verification needs."""
        if drafts.probabilities is None or not isinstance(batch.sampling, RowSampler):
            return
        for i in np.flatnonzero(batch.sampling.needs_probabilities):
            probabilities = drafts.probabilities[i]
            if probabilities is not None and len(probabilities):
                tokens = torch.tensor(drafts.tokens[i], device=probabilities.device)
                draft = SampledDraft(tokens, probabilities, self._uses_block[name])
                self._stored[batch.request_ids[i]] = int(batch.num_tokens[i]), draft

    def pop_for_verification(self, counts: Sequence[int] | None) -> Mapping[int, SampledDraft]:
        """Row -> its sampled drafts, for the step that verifies `counts` drafts of each row.

        If some of a row's drafts were not scheduled, the first of them is included: it must be
        verified too, since its value may be why it was dropped (see `rejection`).
        """
        if not self._stored:
            return {}
        batch, popped = self._runner.input_batch, {}
        for row, request_id in enumerate(batch.req_ids):
            if (stored := self._stored.pop(request_id, None)) is not None:
                num_tokens, draft = stored
                if num_tokens == batch.num_tokens_no_spec[row]:
                    popped[row] = draft.truncated((counts[row] if counts else 0) + 1)
        return popped

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drops the drafts of requests that ended or were preempted."""
        for request_id in request_ids:
            self._stored.pop(request_id, None)
