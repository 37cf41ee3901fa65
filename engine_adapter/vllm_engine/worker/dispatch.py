"""Rows -> proposers -> merged drafts. vLLM sees one drafter; inside, each row has its own.

vLLM creates the class by its dotted path (`speculative_config.method = "custom_class"`, a public
setting) and calls it after the step's tokens are known on the CPU.

Under tensor parallelism every rank drafts the same rows, and the scheduler takes rank 0's drafts.
Ranks stay together because a plan and what is quarantined come from the scheduler, and because
what a proposer drafts, and whether it fails, follows from its batch.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.proposers.batch import DraftBatch, DraftCollector, Drafts
from engine_adapter.proposers.contract import Member, Proposer, ProposerSpec, Target
from engine_adapter.proposers.methods import get_method, needs
from engine_adapter.types import SpecMethod
from engine_adapter.vllm_engine.load_progress import ProgressWriter
from engine_adapter.vllm_engine.wire import DraftReport, SpecgateConfig, from_extra_args
from engine_adapter.vllm_engine.worker.draft_validation import cause, checked
from engine_adapter.vllm_engine.worker.drafting.draft_sampling import SampledDrafts
from engine_adapter.vllm_engine.worker.drafting.paged_head import PagedHead
from engine_adapter.vllm_engine.worker.drafting.paged_model import PagedDraftModel
from engine_adapter.vllm_engine.worker.step import TargetStep
from engine_adapter.vllm_engine.worker.target import LoadedTarget

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Member:
    """A `Member` of the dispatch's."""

    spec: ProposerSpec
    draft_kv: bool
    dispatch: "ProposerDispatch"

    @property
    def num_speculative_tokens(self) -> int:
        return self.spec.num_speculative_tokens

    def draft(self, batch: DraftBatch) -> Drafts:
        return self.dispatch.draft(self.spec.name, batch)


class ProposerDispatch:
    """Every loaded proposer of a rank, and who drafts for which row.

    Args:
        vllm_config: the engine's configuration; its `additional_config` names the proposers.

    Attributes:
        aux_layers: the target's layers whose outputs some head reads, ascending; once loaded.
        sampled: the drafts that were sampled, until they are verified; once a runner is bound.
    """

    aux_layers: tuple[int, ...]
    sampled: SampledDrafts

    def __init__(self, vllm_config: Any) -> None:
        self._vllm_config = vllm_config
        extension = SpecgateConfig.of(vllm_config)
        self._specs = extension.proposers
        self._progress = ProgressWriter(extension.progress_pipe)
        self._proposers: dict[str, Proposer] = {}
        self._draft_models: dict[str, PagedDraftModel] = {}
        self._heads: list[PagedHead] = []
        self._capabilities = {spec.name: needs(spec, self._specs) for spec in self._specs}
        self._target: LoadedTarget | None = None
        self._runner: Any = None
        self._report: DraftReport | None = None
        self._quarantined: Set[str] = frozenset()
        self._last_cause: dict[str, str] = {}
        self._predicted: dict[str, npt.NDArray[np.int32] | None] = {}

    def bind(self, runner: Any) -> None:
        """Takes the runner whose batch it drafts for; it exists only after this class does."""
        self._runner = runner
        self.sampled = SampledDrafts(runner, self._specs)

    def load_model(self, target: torch.nn.Module) -> None:
        """Creates every proposer; vLLM calls it when the target is loaded."""
        self._target = LoadedTarget(target, self._vllm_config.model_config, self._runner.device)
        for spec in self._specs:
            with self._progress.stage(f"loading proposer {spec.name} ({spec.method})"):
                self._proposers[spec.name] = get_method(spec.method).create(spec, self)
                if spec.name in self._draft_models:
                    self._draft_models[spec.name].load(target)
        models = self._draft_models.values()
        self._heads = [model for model in models if isinstance(model, PagedHead)]
        self.aux_layers = tuple(sorted({i for head in self._heads for i in head.aux_layers}))

    def create(self, spec: ProposerSpec) -> Proposer:
        """A proposer without KV of its own, for `install`; a thread beside a step may call it."""
        return get_method(spec.method).create(spec, self)

    def install(self, spec: ProposerSpec, proposer: Proposer) -> None:
        """Lets a proposer draft from the next step on."""
        self._specs = (*self._specs, spec)
        self._capabilities[spec.name] = needs(spec, self._specs)
        self._proposers[spec.name] = proposer
        self.sampled.add(spec)

    def remove(self, name: str) -> None:
        """Drops a proposer without KV of its own. Safe for one that is not there."""
        self._specs = tuple(spec for spec in self._specs if spec.name != name)
        for known in (self._capabilities, self._proposers, self._last_cause):
            known.pop(name, None)

    @property
    def target(self) -> Target:
        """The target, once it is loaded."""
        assert self._target is not None
        return self._target

    def member(self, name: str) -> Member:
        """Another proposer, asked through this dispatch."""
        spec = next(spec for spec in self._specs if spec.name == name)
        return _Member(spec, self._capabilities[name].draft_kv, self)

    def draft_model(self, spec: ProposerSpec) -> Proposer:
        """The runner of a proposer's draft model; loaded with the rest."""
        return self._paged(PagedDraftModel, spec)

    def draft_head(self, spec: ProposerSpec) -> Proposer:
        """The runner of a proposer's head; loaded with the rest."""
        return self._paged(PagedHead, spec)

    def _paged(self, kind: type[PagedDraftModel], spec: ProposerSpec) -> PagedDraftModel:
        model = kind(spec, self._vllm_config, self._runner.device, self._runner)
        self._draft_models[spec.name] = model
        return model

    @property
    def draft_models(self) -> Mapping[str, PagedDraftModel]:
        """The proposers that keep KV, by name."""
        return self._draft_models

    def memory(self) -> dict[str, tuple[int, int]]:
        """Bytes of weights and of KV on this rank, of every proposer that holds any."""
        held = {}
        for name, proposer in self._proposers.items():
            model = self._draft_models.get(name)
            held[name] = (proposer.weights_bytes, model.kv_bytes if model else 0)
        return {name: both for name, both in held.items() if any(both)}

    # -- following the batch -----------------------------------------------------------------

    def observe(self, scheduler_output: Any) -> None:
        """Notes which requests ended and which KV blocks changed hands. Called first in a step."""
        self._quarantined = scheduler_output.specgate_quarantined
        if ended := list(scheduler_output.finished_req_ids):
            for proposer in self._proposers.values():
                proposer.forget(ended)
            for request_id in ended:
                self._predicted.pop(request_id, None)
        ended.extend(scheduler_output.scheduled_cached_reqs.resumed_req_ids)
        self.sampled.forget(ended)
        if not self._draft_models:
            return
        fresh = self._fresh_blocks(scheduler_output)
        copies = scheduler_output.kv_cache_block_copies or []
        for model in self._draft_models.values():
            if fresh or copies:
                model.blocks_changed(fresh, copies)
            model.forget(ended)

    def keep_states(
        self, slots: torch.Tensor, final: torch.Tensor, auxiliary: Sequence[torch.Tensor]
    ) -> None:
        """Lets the heads keep the target's hidden states of a step, whoever drafts after it.

        Args:
            slots: int64 [T], the KV slots of the tokens that the target read.
            final: [T, H], its final hidden states.
            auxiliary: the outputs of `aux_layers`, each [T, H].
        """
        by_layer = dict(zip(self.aux_layers, auxiliary, strict=True))
        for head in self._heads:
            head.keep_states(slots, final, by_layer)

    def _fresh_blocks(self, scheduler_output: Any) -> list[int]:
        """Ids of the blocks that requests got in this step without content."""
        size = self._vllm_config.cache_config.block_size
        fresh: list[int] = []
        for new in scheduler_output.scheduled_new_reqs:
            fresh.extend(new.block_ids[0][-(-new.num_computed_tokens // size) :])
        cached = scheduler_output.scheduled_cached_reqs
        for i, blocks in enumerate(cached.new_block_ids):
            if blocks is not None:
                resumed = cached.req_ids[i] in cached.resumed_req_ids
                held = -(-cached.num_computed_tokens[i] // size) if resumed else 0
                fresh.extend(blocks[0][held:])
        return fresh

    # -- drafting ----------------------------------------------------------------------------

    def propose(self, plan: Mapping[str, SpecMethod], step: TargetStep) -> list[list[int]]:
        """Drafts for the rows of the plan, after a step of the target.

        Args:
            plan: request id -> proposer and k.

        Returns:
            The drafts of each row of the batch, `[]` for a row without.
        """
        self._report = DraftReport()
        merged = DraftCollector(len(step.sampled))
        for name, rows in self._group(plan, step.sampled).items():
            began = time.perf_counter()
            batch = self._batch(name, rows, plan, step)
            drafts = self.draft(name, batch)
            merged.set(batch.rows, drafts)
            self._note(name, time.perf_counter() - began, drafts)
        return [list(tokens) for tokens in merged.collect().tokens]

    def draft(self, name: str, batch: DraftBatch) -> Drafts:
        """What a proposer drafts for each row: nothing where it fails, or its context ends."""
        collected = DraftCollector(len(batch.rows))
        index = np.arange(len(batch.rows))
        room = self._context(name) - batch.num_tokens
        if (room < batch.k).any():
            index = np.flatnonzero((room > 0) | ((room == 0) & (batch.k == 0)))
            batch = batch.select(index, np.minimum(batch.k, room)[index])
        if index.size and name not in self._quarantined:
            batch = self.sampled.ask(name, batch)
            try:
                drafts = self._proposers[name].propose(batch)
                drafts = checked(drafts, batch, self.target.vocab_size)
            except torch.AcceleratorError:
                raise
            except Exception as error:
                self._failed(name, error)
            else:
                self.sampled.keep(name, batch, drafts)
                collected.set(index, drafts)
        return collected.collect()

    def _context(self, name: str) -> int:
        """How many positions the engine and the proposer can hold."""
        limit: int = self._runner.max_model_len
        model = self._draft_models.get(name)
        return min(limit, model.max_model_len) if model else limit

    def _failed(self, name: str, error: Exception) -> None:
        """Reports a fault. The same one again and again is in the log once."""
        assert self._report is not None
        why = self._report.faults[name] = cause(error)
        if self._last_cause.get(name) != why:
            self._last_cause[name] = why
            log.error("proposer %s failed: its rows go without drafts", name, exc_info=error)

    def _group(
        self, plan: Mapping[str, SpecMethod], sampled: Sequence[Any]
    ) -> Mapping[str, list[int]]:
        """Proposer -> its rows. Rows in mid-prompt are for those with KV to read along."""
        index = self._runner.input_batch.req_id_to_index
        rows: defaultdict[str, list[int]] = defaultdict(list)
        for request_id, chosen in plan.items():
            if chosen.proposer not in self._proposers:
                continue  # unloaded; a request that was aborted still has it
            row = index[request_id]
            reads_only = not chosen.num_speculative_tokens or not sampled[row]
            if not reads_only or self._capabilities[chosen.proposer].draft_kv:
                rows[chosen.proposer].append(row)
        return rows

    def _batch(
        self, name: str, rows: list[int], plan: Mapping[str, SpecMethod], step: TargetStep
    ) -> DraftBatch:
        """What the proposer is asked for its rows."""
        batch = self._runner.input_batch
        index = np.asarray(rows)
        request_ids = [batch.req_ids[row] for row in rows]
        emitted = np.array([bool(step.sampled[row]) for row in rows])
        k = np.array([plan[request_id].num_speculative_tokens for request_id in request_ids])
        computed = batch.num_computed_tokens_cpu[index].astype(np.int64)
        num_tokens = batch.num_tokens_no_spec[index].astype(np.int64)
        if not emitted.all():
            k *= emitted
            read = [step.scheduled[request_id] for request_id in request_ids]
            num_tokens = np.where(emitted, num_tokens, computed + read)
        capabilities = self._capabilities[name]
        token_ids = batch.token_ids_cpu.view()
        token_ids.flags.writeable = False  # the target reads its next tokens from there
        return DraftBatch(
            rows=index,
            request_ids=request_ids,
            num_tokens=num_tokens,
            num_prompt_tokens=batch.num_prompt_tokens[index].astype(np.int64),
            num_computed=computed,
            k=k,
            token_ids=token_ids,
            hidden=step.last_hidden(index) if capabilities.hidden_states else None,
            predicted=[self._prediction(request_id) for request_id in request_ids]
            if capabilities.prediction
            else None,
        )

    def _prediction(self, request_id: str) -> npt.NDArray[np.int32] | None:
        """What the request predicts, read from vLLM's request once."""
        if request_id not in self._predicted:
            params = self._runner.requests[request_id].sampling_params
            tokens = from_extra_args(params).prediction
            self._predicted[request_id] = np.array(tokens, np.int32) if tokens else None
        return self._predicted[request_id]

    def take_report(self) -> DraftReport | None:
        """What the last drafting took, once; `None` if nothing drafted since."""
        report, self._report = self._report, None
        return report

    def _note(self, name: str, seconds: float, drafts: Drafts) -> None:
        assert self._report is not None
        self._report.seconds[name] = seconds
        self._report.drafted[name] = sum(map(len, drafts.tokens))
        if drafts.catchup_tokens:
            self._report.catchup[name] = drafts.catchup_tokens
