"""Rows -> proposers -> merged drafts: a step's drafts, each row's by the proposer of its plan.

The tokens of the step are on the CPU when it is called.

Under tensor parallelism every rank drafts the same rows, and the scheduler takes rank 0's drafts.
Ranks stay together because the plan and the quarantined proposers come from the scheduler, and
because a proposer's drafts and its failures depend only on its batch.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from engine_adapter.policies.contract import DraftTime, StepPlan
from engine_adapter.proposers.batch import DraftBatch, DraftCollector, Drafts
from engine_adapter.proposers.contract import Proposer, ProposerSpec
from engine_adapter.seam.types import SpecMethod
from engine_adapter.vllm_engine.wire import DraftReport, without_kv
from engine_adapter.vllm_engine.worker.draft_batches import DraftBatchBuilder
from engine_adapter.vllm_engine.worker.draft_clock import DraftClock
from engine_adapter.vllm_engine.worker.draft_validation import (
    BadDrafts,
    describe_error,
    repair_distributions,
    require_distributions,
    validate_drafts,
)
from engine_adapter.vllm_engine.worker.drafting.draft_sampling import SampledDraftStore
from engine_adapter.vllm_engine.worker.drafting.early_drafts import UnreadStep
from engine_adapter.vllm_engine.worker.early_lookups import EarlyLookup, EarlyLookups
from engine_adapter.vllm_engine.worker.proposer_host import ProposerHost
from engine_adapter.vllm_engine.worker.shadows import ShadowDrafts, trim_lookup_drafts
from engine_adapter.vllm_engine.worker.target import TargetStep

log = logging.getLogger(__name__)


class ProposerDispatch:
    """Calls the proposers of a rank, each for its rows of the plan.

    Args:
        vllm_config: the engine's configuration; its `additional_config` names the proposers.

    Attributes:
        host: the proposers; once a runner is bound.
        lookups: lookups on the device; once bound.
        sampled_drafts: the drafts that were sampled, until they are verified; once bound.
    """

    host: ProposerHost
    lookups: EarlyLookups
    sampled_drafts: SampledDraftStore

    def __init__(self, vllm_config: Any) -> None:
        self._vllm_config = vllm_config
        self._quarantined: Set[str] = frozenset()
        self._last_fault: dict[str, str] = {}
        self._report = DraftReport()
        # Proposer -> the time of its early drafts, until they are taken.
        self._early_clocks: dict[str, DraftClock] = {}
        self._shadows, self._in_shadow = ShadowDrafts(), False
        self._block_sizes: list[int] = []

    def bind(self, runner: Any) -> None:
        """Takes the runner, whose batch the dispatch reads."""
        self._runner = runner
        self.host = ProposerHost(self._vllm_config, runner, self.draft)
        self._batches = DraftBatchBuilder(runner, self.host.constraints)
        self.lookups = EarlyLookups(runner, self.host.proposers)
        self.sampled_drafts = SampledDraftStore(runner, self.host.specs, self.host.constraints)

    def load_model(self, target: torch.nn.Module) -> None:
        """Creates every proposer, once the target is loaded."""
        self.host.load(target)

    def install(self, spec: ProposerSpec, proposer: Proposer) -> None:
        """Adds a proposer, created by the host, that drafts from the next step on."""
        self.host.install(spec, proposer)
        self.sampled_drafts.add_proposer(spec)

    def remove(self, name: str) -> None:
        """Removes a proposer without KV of its own. Does nothing if it is not loaded."""
        self.host.remove(name)
        self._shadows.forget_proposer(name)
        self._last_fault.pop(name, None)

    def bind_kv_cache(self, kv_cache_config: Any, kernel_block_sizes: list[int]) -> None:
        """Shows the KV cache to every draft model; called before the first step."""
        groups = kv_cache_config.kv_cache_groups
        self._block_sizes = [group.kv_cache_spec.block_size for group in groups]
        for spec in self.host.specs:
            if model := self.host.draft_models.get(spec.name):
                with self.host.fail_start_on_error(spec):
                    model.bind_kv_cache(kv_cache_config, kernel_block_sizes)

    # -- following the batch -----------------------------------------------------------------

    def observe(self, scheduler_output: Any) -> None:
        """Called first in a step: drops the state of ended requests, and follows changed blocks."""
        self._quarantined = scheduler_output.specgate_quarantined
        self.host.constraints.starts = scheduler_output.specgate_constraints
        if ended_ids := list(scheduler_output.finished_req_ids):
            for proposer in self.host.proposers.values():
                proposer.forget(ended_ids)
            self._batches.forget(ended_ids)
            self.lookups.forget(ended_ids)
            self.host.constraints.forget(ended_ids)
        # A preempted request keeps its proposers' state, but its drafts and blocks are gone.
        without_blocks = [*ended_ids, *without_kv(scheduler_output)]
        self.sampled_drafts.forget(without_blocks)
        self._shadows.forget(without_blocks)
        for head in self.host.heads:
            head.drop_states()
        if not self.host.draft_models:
            return
        new_blocks = self._fresh_blocks(scheduler_output)
        copies = scheduler_output.kv_cache_block_copies or []
        for model in self.host.draft_models.values():
            model.blocks_changed(new_blocks, copies)
            model.forget(without_blocks)

    def store_states(
        self,
        slots: Mapping[str, torch.Tensor],
        final: torch.Tensor,
        auxiliary: Sequence[torch.Tensor],
    ) -> None:
        """Gives every head the target's hidden states of a step, also if it does not draft.

        Args:
            slots: layer of the KV cache -> int64 [T or more], the slots of the tokens that the
                target read.
            final: [T, H], its final hidden states.
            auxiliary: the outputs of `host.aux_layers`, each [T, H].
        """
        by_layer = dict(zip(self.host.aux_layers, auxiliary, strict=True))
        for head in self.host.heads:
            head.store_states(slots, final, by_layer)

    def _fresh_blocks(self, output: Any) -> list[list[int]]:
        """For each KV cache group, the blocks without content that requests got in this step."""
        new = [(each.block_ids, each.num_computed_tokens) for each in output.scheduled_new_reqs]
        new += [(blocks, 0) for blocks in output.scheduled_cached_reqs.new_block_ids if blocks]
        return [
            [block for blocks, filled in new for block in blocks[gid][-(-filled // size) :]]
            for gid, size in enumerate(self._block_sizes)
        ]

    # -- drafting ----------------------------------------------------------------------------

    def propose(
        self, plan: StepPlan, step: TargetStep
    ) -> tuple[Sequence[Sequence[int]], DraftReport]:
        """Drafts for the rows of the plan, after a step of the target.

        Args:
            plan: which proposers draft, and which only in the shadow.
            step: what the target did in this step.

        Returns:
            The drafts of each row of the batch, empty for a row without; and the report.
        """
        report = self._report
        merged = DraftCollector(len(step.num_sampled))
        self._compare_shadows()
        for name, batch in self._batches_of(self._first_methods(plan), step):
            drafts = self._measured(name, batch)
            if plan.verify_caps:
                drafts = trim_lookup_drafts(plan, name, batch, drafts, self._shadows, report)
            merged.set(batch.rows, drafts)
        if plan.fallbacks:
            self._fall_back(plan.fallbacks, step, merged)
        self._draft_shadows(plan.shadows, step)
        report.constraint_times = self.host.constraints.take_times()
        self._report, self._early_clocks = DraftReport(), {}
        return merged.collect().tokens, report

    def look_up_early(self, plan: StepPlan, step: UnreadStep, rows: Any) -> EarlyLookup | None:
        """All drafts of the plan, if a lookup makes them: see `EarlyLookups.look_up`."""
        name = self.lookups.proposer_of(plan, self._quarantined)
        if name is not None:
            with self._fault_delays(name):
                return self.lookups.look_up(name, plan, step, rows)
        return None

    def propose_early(self, plan: StepPlan, step: UnreadStep) -> None:
        """Launches models whose drafts need not wait for the tokens of the step.

        `propose`, which is called for the same step later, takes the drafts. Rows with options or
        a constraint that limit drafts, and those that sample them, are drafted for then.
        """
        ids, methods = self._runner.input_batch.req_ids, self._first_methods(plan)
        by_name: defaultdict[str, list[int]] = defaultdict(list)
        for i, row in enumerate(step.rows.tolist()):
            method = methods.get(ids[row])
            if method is not None and self._drafts_early(method, ids[row]):
                by_name[method.proposer].append(i)
        for name, index in by_name.items():
            self._early_clocks[name] = DraftClock(self._runner.device)
            with self._fault_delays(name):
                self._draft_early(name, methods, step.select(np.array(index)))
            self._early_clocks[name].stop()

    @contextmanager
    def _fault_delays(self, name: str) -> Iterator[None]:
        """A scope in which an error of a proposer is reported, and its drafts are made later."""
        try:
            yield
        except torch.AcceleratorError:
            raise
        except Exception as error:
            self._record_fault(name, error, self._report, "are made later")

    def _drafts_early(self, method: SpecMethod, request_id: str) -> bool:
        """Whether the method's proposer can, and the request has no grammar to follow."""
        name, model = method.proposer, self.host.draft_models.get(method.proposer)
        if model is None or not model.drafts_early or name in self._quarantined:
            return False
        params = self._runner.requests[request_id].sampling_params
        return bool(method.num_speculative_tokens) and params.structured_outputs is None

    def _draft_early(self, name: str, methods: Mapping[str, SpecMethod], step: UnreadStep) -> None:
        ids = [self._runner.input_batch.req_ids[row] for row in step.rows.tolist()]
        k = [methods[request_id].num_speculative_tokens for request_id in ids]
        batch = self._batches.before(ids, k, step.rows)
        longest = batch.num_tokens + step.num_drafts + 1 + batch.k
        can = step.emits(batch.num_tokens, batch.num_computed)
        can &= longest <= self._context_length(name)
        can &= self.host.reads_prompts(name, ids)
        can &= self.sampled_drafts.are_likeliest(name, batch)
        if can.all():
            self.host.draft_models[name].draft_early(batch, step)
        elif can.any():
            index = np.flatnonzero(can)
            self.host.draft_models[name].draft_early(batch.select(index), step.select(index))

    def _first_methods(self, plan: StepPlan) -> Mapping[str, SpecMethod]:
        """What each row's first proposer is asked for: its whole k if the plan cuts its draft."""
        if not plan.verify_caps:
            return plan.drafts
        methods = dict(plan.drafts)
        for request_id in plan.verify_caps:
            name = methods[request_id].proposer
            if name in self.host.proposers:
                methods[request_id] = SpecMethod(name, self.host.k_of(name))
        return methods

    def _fall_back(
        self, fallbacks: Mapping[str, SpecMethod], step: TargetStep, merged: DraftCollector
    ) -> None:
        """Drafts with the second proposer of the rows for which nothing of the first is kept."""
        index, empty = self._runner.input_batch.req_id_to_index, merged.empty
        methods = {r: method for r, method in fallbacks.items() if empty[index[r]]}
        for name, batch in self._batches_of(methods, step):
            merged.set(batch.rows, self._measured(name, batch))
            self._report.fallbacks.extend(batch.request_ids)

    def _measured(self, name: str, batch: DraftBatch) -> Drafts:
        """A proposer's drafts. The report counts those for the next step, and times each call."""
        clock = DraftClock(self._runner.device)
        drafts = self.draft(name, batch)
        clock.stop()
        report, is_shadow, is_asked = self._report, self._in_shadow, name not in self._quarantined
        tokens, caught_up = sum(map(len, drafts.tokens)), drafts.catchup_tokens
        size = len(batch.k), int(batch.k.max(initial=0)), tokens
        early = None if self._in_shadow else self._early_clocks.get(name)
        if not is_shadow:
            report.add_drafts(name, tokens, caught_up)

        def read_time() -> None:
            seconds = clock.read_s() + (early.read_s() if early else 0.0)
            if not is_shadow:
                report.add_seconds(name, seconds)
            if is_asked:  # the time of a call that was not made says nothing
                report.work.append((name, DraftTime(seconds, *size, caught_up)))

        report.unread.append(read_time)
        return drafts

    def _compare_shadows(self) -> None:
        """Compares the shadow drafts that wait with the rows' tokens."""
        if not self._shadows:
            return
        batch = self._runner.input_batch
        index, lengths = batch.req_id_to_index, batch.num_tokens_no_spec
        rows = ((r, row, int(lengths[row])) for r, row in index.items())
        self._report.outcomes.extend(self._shadows.compare(rows, batch.token_ids_cpu))

    def _draft_shadows(self, shadows: Mapping[str, Sequence[str]], step: TargetStep) -> None:
        """Makes new shadow drafts."""
        index = self._runner.input_batch.req_id_to_index
        for name, request_ids in shadows.items():
            if name in self._quarantined:
                continue
            k = self.host.k_of(name)
            methods = {
                request_id: SpecMethod(name, k)
                for request_id in request_ids
                if request_id in index and not self._shadows.waits(request_id, name)
            }
            for _, batch in self._batches_of(methods, step):
                self._in_shadow = True
                try:
                    drafts = self._measured(name, batch)
                finally:
                    self._in_shadow = False
                self._report.outcomes.extend(self._shadows.add(name, batch, drafts.tokens))

    def _batches_of(
        self, methods: Mapping[str, SpecMethod], step: TargetStep
    ) -> Iterator[tuple[str, DraftBatch]]:
        """Each proposer with the batch of its rows."""
        for name, rows in self._group_rows(methods, step.num_sampled.tolist()).items():
            yield name, self._batches.build(rows, methods, step, self.host.capabilities[name])

    def _group_rows(
        self, methods: Mapping[str, SpecMethod], num_sampled: Sequence[int]
    ) -> Mapping[str, list[int]]:
        """Proposer -> its rows. Rows in the middle of a prompt go only to proposers with KV."""
        index = self._runner.input_batch.req_id_to_index
        reads = {name: self.host.capabilities[name].draft_kv for name in self.host.proposers}
        rows: defaultdict[str, list[int]] = defaultdict(list)
        for request_id, method in methods.items():
            row, name = index[request_id], method.proposer
            # One that is not there was unloaded; a request that was aborted still names it.
            drafts = method.num_speculative_tokens and num_sampled[row]
            if name in reads and (reads[name] or drafts):
                rows[name].append(row)
        return rows

    def draft(self, name: str, batch: DraftBatch) -> Drafts:
        """A proposer's drafts for each row.

        None if it fails, where the context ends, or for pictures that it cannot read.
        """
        remaining = self._context_length(name) - batch.prefix_lengths
        reads = self.host.reads_prompts(name, batch.request_ids)
        if reads.all() and (remaining >= batch.k).all():
            return self._contained(name, batch)
        index = np.flatnonzero(reads & ((remaining > 0) | ((remaining == 0) & (batch.k == 0))))
        collected = DraftCollector(len(batch.rows))
        batch = batch.select(index, np.minimum(batch.k, remaining)[index])
        collected.set(index, self._contained(name, batch))
        return collected.collect()

    def _contained(self, name: str, batch: DraftBatch) -> Drafts:
        """A proposer's drafts; none for all rows if it fails, or is quarantined."""
        if name in self._quarantined or not len(batch.rows):
            return Drafts([()] * len(batch.rows))
        try:
            # A shadow's distributions must not replace those of the row's own drafts.
            batch = self.sampled_drafts.with_sampler(name, batch, greedy=self._in_shadow)
            drafts = self.host.proposers[name].propose(batch)
            drafts = validate_drafts(drafts, batch, self.host.target.vocab_size)
            if drafts.probabilities is not None:
                self._check_distributions(name, drafts)
            drafts = self.sampled_drafts.cut(batch, drafts)
        except torch.AcceleratorError:
            raise
        except Exception as error:
            self._record_fault(name, error, self._report)
            return Drafts([()] * len(batch.rows))
        if not self._in_shadow:
            self.sampled_drafts.store(name, batch, drafts)
        return drafts

    def _check_distributions(self, name: str, drafts: Drafts) -> None:
        """Raises `BadDrafts` for wrong distributions; on a device the report gets the fault."""
        report, are_valid = self._report, repair_distributions(drafts)
        if self._runner.device.type == "cpu":
            require_distributions(are_valid)
            return

        def check() -> None:
            try:
                require_distributions(are_valid)
            except BadDrafts as error:
                self._record_fault(name, error, report, "are verified as certain ones")

        report.unread.append(check)

    def _context_length(self, name: str) -> int:
        """How many positions both the engine and the proposer can hold."""
        limit: int = self._runner.max_model_len
        model = self.host.draft_models.get(name)
        return min(limit, model.max_model_len) if model else limit

    def _record_fault(
        self, name: str, error: Exception, report: DraftReport, effect: str = "are dropped"
    ) -> None:
        """Reports a fault, and what becomes of the drafts. One that repeats is logged once."""
        fault = report.faults[name] = describe_error(error)
        if self._last_fault.get(name) != fault:
            self._last_fault[name] = fault
            log.error("proposer %s failed: its drafts %s", name, effect, exc_info=error)
