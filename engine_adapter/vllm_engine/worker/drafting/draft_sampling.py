"""The drafts of models: how they are drawn, and where sampled ones wait until they are verified.

A row with options or a constraint drafts only what these allow: see `row_limits`.

A row without a seed samples its drafts with noise of its own, and each draft comes with the
distribution it was sampled from. A row with a seed samples with the noise of the position that it
drafts for, which the target will use there too: draft and target then agree wherever their
distributions let them (the coupling of arXiv 2408.07978). The emitted token is the target's own
sample, so such a row is verified by exact match, and its text stays that of plain decoding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.draft_options import min_confidence, samples, verifies_blocks
from engine_adapter.proposers.draft_table import on_device
from engine_adapter.proposers.methods import get_method
from engine_adapter.proposers.staging import to_device
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.constraints import RowConstraints
from engine_adapter.vllm_engine.worker.drafting.confidence import ConfidenceGate
from engine_adapter.vllm_engine.worker.drafting.draft_noise import DraftNoise
from engine_adapter.vllm_engine.worker.drafting.row_limits import RowLimits
from engine_adapter.vllm_engine.worker.drafting.tensor_parallel import are_shared, is_only_rank
from engine_adapter.vllm_engine.worker.verification.rejection import SampledDraft


@dataclass(frozen=True, slots=True)
class _Parameters:
    """The options of some rows on the device.

    Attributes:
        rows: int [N], which rows.
        temperature: float32 [N]; 1 for a row that is not sampled.
        top_k: int32 [N], top_p: float32 [N].
        hot: bool [N], the rows that are sampled.
    """

    rows: npt.NDArray[np.intp]
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    hot: torch.Tensor

    def head(self, count: int) -> "_Parameters":
        """Those of the first rows."""
        return _Parameters(
            self.rows[:count],
            self.temperature[:count],
            self.top_k[:count],
            self.top_p[:count],
            self.hot[:count],
        )


@dataclass(frozen=True, slots=True)
class RowSampler:
    """A `DraftSampler`.

    Attributes:
        noise: the runner's.
        temperature: float32 [R], on the CPU; 0 is a row that drafts the most likely token.
        top_k: int32 [R], top_p: float32 [R]: as the requests ask for.
        seeds: each row's seed.
        num_tokens: int64 [R], the committed tokens before the drafts.
        limits: what the requests allow; `None` if they allow all.
        gate: ends the rows' drafts where the model is not sure; `None` if nothing does.
    """

    noise: DraftNoise
    temperature: npt.NDArray[np.float32]
    top_k: npt.NDArray[np.int32]
    top_p: npt.NDArray[np.float32]
    seeds: Sequence[int | None]
    num_tokens: npt.NDArray[np.int64]
    limits: RowLimits | None = None
    gate: ConfidenceGate | None = None
    _copied: list[_Parameters] = field(default_factory=list, init=False, compare=False)

    @property
    def samples(self) -> bool:
        """See `DraftSampler.samples`."""
        return bool(self.temperature.any())

    def draw(
        self, logits: torch.Tensor, rows: npt.NDArray[np.intp], depth: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `DraftSampler.draw`."""
        processors: Sequence[Any] = ()
        if self.limits is not None:
            logits, processors = self.limits.apply(logits, rows, depth)
        tokens, probabilities = logits.argmax(dim=-1), None
        if self.samples:
            options = self._options(rows, logits.device)
            sampled, probabilities = self._sample(logits, processors, options, depth)
            tokens = torch.where(options.hot, sampled, tokens)
        if self.limits is not None:
            self.limits.record(rows, tokens)
        if self.gate is not None:
            self.gate.add(rows, logits)
        return tokens, probabilities

    def is_open(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_] | None:
        """See `DraftSampler.is_open`."""
        return None if self.gate is None else self.gate.is_open(rows)

    def _sample(
        self,
        logits: torch.Tensor,
        processors: Sequence[Any],
        options: _Parameters,
        depth: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens int64 [N] and their distributions float32 [N, V]; `processors`: after it."""
        rows = options.rows
        scaled = logits.float() / options.temperature[:, None]
        for processor in processors:
            scaled = processor.apply(scaled)
        scaled = compat.apply_top_k_top_p(
            scaled,
            options.top_k if (self.top_k[rows] < logits.shape[1]).any() else None,
            options.top_p if (self.top_p[rows] < 1).any() else None,
        )
        probabilities = scaled.softmax(dim=-1, dtype=torch.float32)
        seeds = [self.seeds[row] for row in rows]
        return self.noise.sample(scaled, seeds, self.num_tokens[rows] + depth), probabilities

    def select(self, index: npt.NDArray[np.intp]) -> "RowSampler":
        """See `DraftSampler.select`."""
        return RowSampler(
            self.noise,
            self.temperature[index],
            self.top_k[index],
            self.top_p[index],
            [self.seeds[i] for i in index],
            self.num_tokens[index],
            self.limits and self.limits.select(index),
            self.gate and self.gate.select(index),
        )

    @property
    def needs_probabilities(self) -> npt.NDArray[np.bool_]:
        """The rows whose drafts are verified with the distributions they came from, bool [R]."""
        unseeded = np.array([seed is None for seed in self.seeds], np.bool_)
        return unseeded & (self.temperature > 0)

    def _options(self, rows: npt.NDArray[np.intp], device: torch.device) -> _Parameters:
        """The rows' options. Rows that begin those of the last call are not copied again."""
        if not self._copied or not np.array_equal(self._copied[0].rows[: len(rows)], rows):
            hot = self.temperature[rows] > 0
            temperature = np.where(hot, self.temperature[rows], np.float32(1))
            on_device = to_device(device, temperature, self.top_k[rows], self.top_p[rows], hot)
            self._copied[:] = [_Parameters(rows.copy(), *on_device)]
        return self._copied[0].head(len(rows))


class SampledDraftStore:
    """The sampled drafts of the last step of each request, until they are verified.

    Args:
        runner: vLLM's; its batch is used, and how it samples.
        specs: the proposers.
        constraints: of the rows.
    """

    def __init__(
        self, runner: Any, specs: Sequence[ProposerSpec], constraints: RowConstraints
    ) -> None:
        self._runner = runner
        self._constraints = constraints
        # Proposers whose drafts are drawn from logits.
        self._draws: set[str] = set()
        # Proposer -> whether the block rule verifies its drafts; only proposers that sample.
        self._uses_block: dict[str, bool] = {}
        # Proposer -> the threshold of its confidence gate; only proposers that have one.
        self._thresholds: dict[str, float] = {}
        for spec in specs:
            self.add_proposer(spec)
        # Request id -> the proposer, the number of committed tokens before its drafts, the drafts.
        self._stored: dict[str, tuple[str, int, SampledDraft]] = {}

    def add_proposer(self, spec: ProposerSpec) -> None:
        """Adds a proposer that was loaded later, or again under the same name."""
        self._uses_block.pop(spec.name, None)
        self._draws.discard(spec.name)
        self._thresholds.pop(spec.name, None)
        if threshold := min_confidence(spec):
            self._thresholds[spec.name] = threshold
        if get_method(spec.method).capabilities.runs_model:
            self._draws.add(spec.name)
        if samples(spec):
            self._uses_block[spec.name] = verifies_blocks(spec)

    def with_sampler(self, name: str, batch: DraftBatch, *, greedy: bool = False) -> DraftBatch:
        """The batch with a sampler, if it changes the drafts of a row.

        So a row samples them, its request limits them, or the proposer has a confidence gate.

        Args:
            greedy: no row samples.
        """
        if name not in self._draws:
            return batch
        has_limits = self._constraints.starts or name in self._thresholds
        if not has_limits and self._runner.sampler.are_plain(batch.rows):
            return batch
        rows, input_batch = batch.rows, self._runner.input_batch
        temperature = np.zeros(len(rows), np.float32)
        if name in self._uses_block and not greedy:
            temperature = input_batch.temperature_cpu[rows]
        options = self._runner.row_options(batch, samples=bool(temperature.any()))
        limits = RowLimits(options, self._constraints.for_batch(batch))
        gate = self._new_gate(name, len(rows))
        if not (limits or temperature.any() or gate):
            return batch
        seeds: list[int | None] = [None] * len(rows)
        if temperature.any():
            requests = self._runner.requests
            seeds = [requests[request_id].sampling_params.seed for request_id in batch.request_ids]
        top_k, top_p = input_batch.top_k_cpu[rows], input_batch.top_p_cpu[rows]
        sampling = RowSampler(
            self._runner.draft_noise,
            temperature,
            top_k,
            top_p,
            seeds,
            batch.num_tokens,
            limits or None,
            gate,
        )
        return replace(batch, sampling=sampling)

    def are_likeliest(self, name: str, batch: DraftBatch) -> npt.NDArray[np.bool_]:
        """The rows that draft the most likely tokens: none is sampled, no option changes any.

        Constraints apart. bool [R].
        """
        rows = batch.rows
        are: npt.NDArray[np.bool_] = np.full(len(rows), name not in self._thresholds)
        if name in self._uses_block:
            are &= self._runner.input_batch.temperature_cpu[rows] == 0
        if are.any() and not self._runner.row_options(batch, samples=False).are_idle:
            one_by_one = (batch.select(np.array([i])) for i in range(len(rows)))
            are &= [self._runner.row_options(row, samples=False).are_idle for row in one_by_one]
        return are

    def _new_gate(self, name: str, count: int) -> ConfidenceGate | None:
        """A gate for `count` rows, if the proposer has one.

        Where ranks share a draft model's passes, all must make the same ones. So no rank decides
        by its own copy of the numbers to leave some out.
        """
        threshold = self._thresholds.get(name)
        if threshold is None:
            return None
        runner = self._runner
        readable = is_only_rank(runner.parallel_config) and runner.device.type == "cpu"
        return ConfidenceGate.new(threshold, count, runner.device, is_readable=readable)

    @staticmethod
    def cut(batch: DraftBatch, drafts: Drafts) -> Drafts:
        """The drafts, each up to where its confidence gate closed."""
        if not isinstance(batch.sampling, RowSampler) or batch.sampling.gate is None:
            return drafts
        return batch.sampling.gate.cut(drafts)

    def store(self, name: str, batch: DraftBatch, drafts: Drafts) -> None:
        """Stores the drafts of a proposer whose distributions verification needs."""
        if drafts.probabilities is None or not isinstance(batch.sampling, RowSampler):
            return
        for i in np.flatnonzero(batch.sampling.needs_probabilities):
            probabilities = drafts.probabilities[i]
            if probabilities is not None and len(probabilities):
                tokens = on_device(drafts.tokens[i], probabilities.device)
                draft = SampledDraft(tokens, probabilities, self._uses_block[name])
                self._stored[batch.request_ids[i]] = name, int(batch.num_tokens[i]), draft

    def pop_for_verification(self, input_batch: Any) -> Mapping[int, SampledDraft]:
        """Row -> its sampled drafts, for a step that verifies them.

        If some of a request's drafts were not scheduled, the first of them is included: it must be
        verified too, since its value may be why it was dropped (see `rejection`).

        Args:
            input_batch: vLLM's `InputBatch` of the step.
        """
        if not self._stored:
            return {}
        popped = {}
        lengths = self._runner.input_batch.num_tokens_no_spec[input_batch.idx_mapping_np]
        counts = np.diff(input_batch.cu_num_logits_np) - 1
        for row, request_id in enumerate(input_batch.req_ids):
            if (stored := self._stored.pop(request_id, None)) is not None:
                _, num_tokens, draft = stored
                if num_tokens == lengths[row]:
                    popped[row] = draft.truncated(int(counts[row]) + 1)
        return popped

    def drop_unshared(self, request_ids: Sequence[str]) -> list[str]:
        """Drops the newest drafts that not every rank has; all ranks must call it together.

        A rank without them would verify the row by another rule, and emit other tokens.

        Args:
            request_ids: those of the step, in the order of its rows.

        Returns:
            The requests whose drafts no rank may verify.
        """
        if not self._uses_block:
            return []  # no rank has any
        batch = self._runner.input_batch
        rows = [batch.req_id_to_index[id_] for id_ in request_ids if id_ in batch.req_id_to_index]
        if not batch.temperature_cpu[rows].any():
            return []
        shared = are_shared([self._number_of(id_) for id_ in request_ids])
        unshared = [
            id_ for id_, is_shared in zip(request_ids, shared, strict=True) if not is_shared
        ]
        self.forget(unshared)
        return unshared

    def _number_of(self, request_id: str) -> int:
        """What tells a request's newest drafts from others: their proposer and place; or -1."""
        if (stored := self._stored.get(request_id)) is None:
            return -1
        name, num_tokens, _ = stored
        return crc32(f"{name} {num_tokens}".encode())

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drops the drafts of requests that ended or were preempted."""
        for request_id in request_ids:
            self._stored.pop(request_id, None)
