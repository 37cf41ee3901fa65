"""The proposers of a rank: creating them, installing and removing them while the engine serves."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import (
    Capabilities,
    Member,
    Proposer,
    ProposerSpec,
    Target,
)
from engine_adapter.proposers.methods import get_method, needs
from engine_adapter.vllm_engine.load_progress import ProgressWriter
from engine_adapter.vllm_engine.wire import SpecgateConfig
from engine_adapter.vllm_engine.worker.constraints import RowConstraints
from engine_adapter.vllm_engine.worker.drafting.hidden_states import HiddenStateCache
from engine_adapter.vllm_engine.worker.drafting.kv_groups import keeping_every_position
from engine_adapter.vllm_engine.worker.drafting.paged_block_head import PagedBlockHead
from engine_adapter.vllm_engine.worker.drafting.paged_head import PagedHead
from engine_adapter.vllm_engine.worker.drafting.paged_model import PagedDraftModel
from engine_adapter.vllm_engine.worker.drafting.paged_query_head import PagedQueryHead
from engine_adapter.vllm_engine.worker.start_failure import fail_start_on_error
from engine_adapter.vllm_engine.worker.target import LoadedTarget
from engine_adapter.vllm_engine.worker.verification.rejection import sampling_bytes

DraftCall = Callable[[str, DraftBatch], Drafts]
"""Calls a proposer by its name: `ProposerDispatch.draft`."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A `Member` that drafts through the dispatch."""

    spec: ProposerSpec
    capabilities: Capabilities
    call: DraftCall
    runner: Any

    @property
    def num_speculative_tokens(self) -> int:
        return self.spec.num_speculative_tokens

    @property
    def draft_kv(self) -> bool:
        return self.capabilities.draft_kv

    @property
    def continues(self) -> bool:
        return self.capabilities.continues

    def draft(self, batch: DraftBatch, drafts: Sequence[Sequence[int]]) -> Drafts:
        lengths = np.array([len(row) for row in drafts], np.int64)
        if lengths.any():
            # Behind a row's committed tokens: the next step overwrites them.
            row, column = np.nonzero(np.arange(lengths.max()) < lengths[:, None])
            places = batch.rows[row], batch.num_tokens[row] + column
            self.runner.input_batch.token_ids_cpu[places] = [*chain.from_iterable(drafts)]
            batch = replace(batch, num_continued=lengths)
        return self.call(self.spec.name, batch)


class ProposerHost:
    """Creates proposers and holds them. A `DraftHost`.

    Args:
        vllm_config: the engine's configuration; its `additional_config` names the proposers.
        runner: vLLM's.
        draft: calls a proposer for a cascade of which it is a member.

    Attributes:
        specs: the proposers' configurations.
        proposers: the proposers, by name.
        capabilities: what each needs, by name.
        draft_models: the draft models and heads of the proposers that keep KV, by name.
        heads: the heads among them.
        progress: the way to the gateway while the engine starts.
        aux_layers: the target's layers whose outputs a head reads, ascending.
        constraints: of the rows that are drafted for.
    """

    def __init__(self, vllm_config: Any, runner: Any, draft: DraftCall) -> None:
        self._vllm_config = vllm_config
        self._runner = runner
        self._draft = draft
        config = SpecgateConfig.from_vllm_config(vllm_config)
        self.progress = ProgressWriter(config.progress_pipe)
        self._target: LoadedTarget | None = None
        self.specs = config.proposers
        self.proposers: dict[str, Proposer] = {}
        self.capabilities: dict[str, Capabilities] = {
            spec.name: needs(spec, self.specs) for spec in self.specs
        }
        self.draft_models: dict[str, PagedDraftModel] = {}
        self.heads: list[PagedHead] = []
        self.aux_layers: tuple[int, ...] = ()
        self.constraints = RowConstraints(vllm_config, runner)
        # The memory of sampled drafts that was held when vLLM measured a step.
        self._sampling_bytes = 0

    # -- loading -----------------------------------------------------------------------------

    def load(self, target: torch.nn.Module) -> None:
        """Creates every configured proposer; `target` is the loaded target model."""
        self._target = LoadedTarget(target, self._vllm_config.model_config, self._runner.device)
        for spec in self.specs:
            stage = self.progress.stage(f"loading proposer {spec.name} ({spec.method})")
            with self.fail_start_on_error(spec), stage:
                self.proposers[spec.name] = self.create(spec)
                if spec.name in self.draft_models:
                    self.draft_models[spec.name].load(target)
        self.aux_layers = tuple(sorted({i for head in self.heads for i in head.aux_layers}))
        reserved: dict[Any, HiddenStateCache] = {}
        for head in self.heads:
            head.reserve_states(reserved)

    def fail_start_on_error(self, spec: ProposerSpec) -> AbstractContextManager[None]:
        """A scope in which an error ends the start and names this proposer."""
        return fail_start_on_error(spec, self.progress)

    def create(self, spec: ProposerSpec) -> Proposer:
        """Creates a proposer. For a method without draft KV, another thread may call it."""
        method = get_method(spec.method)
        if method.capabilities.runs_model or method.capabilities.constraint:
            self.constraints.prepare()
        return method.create(spec, self)

    def install(self, spec: ProposerSpec, proposer: Proposer) -> None:
        """Adds a proposer without KV of its own, between two steps."""
        self.specs = (*self.specs, spec)
        self.capabilities[spec.name] = needs(spec, self.specs)
        self.proposers[spec.name] = proposer

    def remove(self, name: str) -> None:
        """Removes a proposer without KV of its own. Does nothing if it is not loaded."""
        self.specs = tuple(spec for spec in self.specs if spec.name != name)
        self.capabilities.pop(name, None)
        self.proposers.pop(name, None)

    def k_of(self, name: str) -> int:
        """A proposer's own k; 0 for one that is not loaded."""
        return next((s.num_speculative_tokens for s in self.specs if s.name == name), 0)

    def reads_prompts(self, name: str, request_ids: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Which requests a proposer can draft for, bool [R]: it may not read pictures."""
        model = self.draft_models.get(name)
        if model is None or model.reads_images:
            return np.ones(len(request_ids), np.bool_)
        requests = self._runner.requests
        return np.array([not requests[id_].mm_features for id_ in request_ids], np.bool_)

    @property
    def aux_reader(self) -> ProposerSpec | None:
        """The first proposer whose head reads layers of the target, if there is one."""
        for spec in self.specs:
            model = self.draft_models.get(spec.name)
            if isinstance(model, PagedHead) and model.aux_layers:
                return spec
        return None

    def memory(self) -> dict[str, tuple[int, int]]:
        """Bytes of weights and of KV on this rank, of every proposer that has any."""
        sizes = {}
        for name, proposer in self.proposers.items():
            model = self.draft_models.get(name)
            sizes[name] = (proposer.weights_bytes, model.kv_bytes if model else 0)
        return {name: nbytes for name, nbytes in sizes.items() if any(nbytes)}

    # -- the KV cache --------------------------------------------------------------------------

    @property
    def draft_layers(self) -> set[str]:
        """The layers of the KV cache that are those of draft models and heads."""
        return {name for model in self.draft_models.values() for name in model.layer_names}

    def kept_specs(self, specs: Mapping[str, Any]) -> dict[str, Any]:
        """vLLM's specs of the draft layers, changed so that they keep every position.

        vLLM frees the blocks behind a sliding window. A draft model that was idle computes what it
        missed from the first position on, so its layers keep all; their attention keeps its window.
        """
        # A layer that uses the KV of another one has no spec.
        names = self.draft_layers & specs.keys()
        return {name: keeping_every_position(specs[name]) for name in names}

    def take_layers(self, attn_groups: list[list[Any]]) -> None:
        """Leaves only the target's layers in vLLM's attention groups.

        Draft models build the metadata of their layers when they run.
        """
        draft_layers = self.draft_layers
        for groups in attn_groups:
            for group in groups:
                group.layer_names = [name for name in group.layer_names if name not in draft_layers]
            groups[:] = [group for group in groups if group.layer_names]

    # -- before the first request ------------------------------------------------------------

    def dummy_run(self, num_tokens: int, graphs: bool) -> None:
        """Runs every draft model on meaningless tokens: see `PagedDraftModel.dummy_run`."""
        for spec in self.specs:
            if model := self.draft_models.get(spec.name):
                with self.fail_start_on_error(spec):
                    model.dummy_run(num_tokens, graphs)

    def sampling_memory(self, num_rows: int) -> torch.Tensor | None:
        """Memory as of the distributions of sampled drafts, if a proposer samples."""
        self._sampling_bytes = sampling_bytes(self.specs, num_rows, self.target.vocab_size)
        if not self._sampling_bytes:
            return None
        device = self._runner.device
        return torch.empty(self._sampling_bytes, dtype=torch.uint8, device=device)

    def room_for(self, spec: ProposerSpec, step_bytes: int | None) -> tuple[int, int]:
        """What a load while steps run is compared with: see `device_memory.check_room`.

        On a CPU only weights count. Nothing else was set aside there when the engine started, and
        the memory of a step comes from the system and returns to it.

        Args:
            step_bytes: what a step was measured to need on a GPU beside weights and KV; `None` if
                vLLM was told the size of the KV cache, and measured nothing.

        Returns:
            The bytes that the proposer takes: `ProposerMethod.device_bytes`, and what its sampled
            drafts need beyond those of the other proposers. And the bytes of a step without it:
            what was measured, and the sampled drafts of loaded proposers beyond what was held then.
        """
        rows: int = self._vllm_config.scheduler_config.max_num_seqs
        method = get_method(spec.method)
        if self._runner.device.type == "cpu":
            return method.device_bytes(spec, self.target, 0), 0
        size = self.target.vocab_size
        reserved = self._sampling_bytes if step_bytes is not None else 0
        bytes_without = max(reserved, sampling_bytes(self.specs, rows, size))
        bytes_with = max(bytes_without, sampling_bytes((*self.specs, spec), rows, size))
        proposer_bytes = method.device_bytes(spec, self.target, rows)
        return proposer_bytes + bytes_with - bytes_without, int(
            step_bytes or 0
        ) + bytes_without - reserved

    # -- what a proposer gets from its host --------------------------------------------------

    @property
    def target(self) -> Target:
        """See `DraftHost.target`."""
        assert self._target is not None
        return self._target

    def member(self, name: str) -> Member:
        """See `DraftHost.member`."""
        spec = next(spec for spec in self.specs if spec.name == name)
        return _Member(spec, self.capabilities[name], self._draft, self._runner)

    def draft_model(self, spec: ProposerSpec) -> Proposer:
        """See `DraftHost.draft_model`."""
        model = PagedDraftModel(spec, self._vllm_config, self._runner.device, self._runner)
        self.draft_models[spec.name] = model
        return model

    def draft_head(self, spec: ProposerSpec) -> Proposer:
        """See `DraftHost.draft_head`."""
        return self._head(PagedHead, spec)

    def block_head(self, spec: ProposerSpec) -> Proposer:
        """See `DraftHost.block_head`."""
        return self._head(PagedBlockHead, spec)

    def query_head(self, spec: ProposerSpec) -> Proposer:
        """See `DraftHost.query_head`."""
        return self._head(PagedQueryHead, spec)

    def _head(self, kind: type[PagedHead], spec: ProposerSpec) -> PagedHead:
        head = kind(spec, self._vllm_config, self._runner.device, self._runner)
        self.draft_models[spec.name] = head
        self.heads.append(head)
        return head
