"""Loads draft models with vLLM's own loaders, several of them in one engine; heads likewise.

vLLM gives the layers of every draft model the same names. Here the names contain the proposer's,
so that each has its own KV. What vLLM builds around the model (buffers, attention groups,
CUDA-graph keys) is used; the drafting itself is in `paged_model` and `paged_head`. What only heads
have is in `head_weights`.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.drafting.draft_config import (
    draft_vllm_config,
    window_of_all_layers,
)
from engine_adapter.vllm_engine.worker.drafting.layer_names import (
    layer_prefix,
    layers_of_one_model,
)
from engine_adapter.vllm_engine.worker.drafting.tensor_parallel import tensor_parallel


class NamedDraft:
    """Mixed into vLLM's proposers: names the layers after the proposer, and counts the weights."""

    def __init__(self, spec: ProposerSpec, vllm_config: Any, *device_and_runner: Any) -> None:
        self.prefix = layer_prefix(spec)
        self._sizes: dict[str, int] = {}
        self._slot_buffers: dict[int, torch.Tensor] = {}
        alone = vllm_config.parallel_config.data_parallel_size == 1
        self._is_eager: bool = alone and vllm_config.model_config.enforce_eager
        arguments = (draft_vllm_config(spec, vllm_config), *device_and_runner)
        super().__init__(*arguments)

    def tp_scope(self) -> AbstractContextManager[None]:
        """The tensor-parallel group in which its layers are created and run."""
        return tensor_parallel(self.speculative_config.draft_tensor_parallel_size)

    def load_model(self, target_model: torch.nn.Module) -> None:
        """Loads the weights as vLLM does, in the model's own tensor-parallel group."""
        with self.tp_scope():
            super().load_model(target_model)
        self._check_layers()

    def _check_layers(self) -> None:
        """Raises `ValueError` for a layer whose state cannot be computed later from its tokens."""
        layers = self.vllm_config.compilation_config.static_forward_context
        for name in sorted(self._draft_attn_layer_names):
            if not isinstance(
                layers[name].get_kv_cache_spec(self.vllm_config), compat.AttentionSpec
            ):
                raise ValueError(
                    f"it has layers of the kind {type(layers[name]).__name__}; a draft model needs "
                    "layers of attention, whose KV can be computed later"
                )

    @property
    def weights_bytes(self) -> int:
        """Bytes of its own weights on this rank."""
        return sum(self._sizes.values())

    @property
    def layer_names(self) -> set[str]:
        """Its attention layers."""
        names: set[str] = self._draft_attn_layer_names
        return names

    @property
    def layers_with_kv(self) -> set[str]:
        """Its attention layers without those that read the KV of another layer."""
        layers = self.vllm_config.compilation_config.static_forward_context
        return {
            name
            for name in self.layer_names
            if not getattr(layers[name], "kv_sharing_target_layer_name", None)
        }

    @property
    def kv_cache_gids(self) -> list[int]:
        """The KV cache groups of its layers, ascending."""
        return sorted(self._slot_buffers)

    def initialize_attn_backend(
        self, kv_cache_config: Any, kernel_block_sizes: list[int] | None = None
    ) -> None:
        """Creates the attention groups of its layers.

        vLLM's method expects all layers in one KV cache group, and gives layers with and without a
        sliding window the same metadata.
        """
        layers = self.vllm_config.compilation_config.static_forward_context
        groups: dict[Any, Any] = {}
        for gid, group in enumerate(kv_cache_config.kv_cache_groups):
            for name in sorted(self.layer_names & set(group.layer_names)):
                backend = layers[name].get_attn_backend()
                own = layers[name].get_kv_cache_spec(self.vllm_config)
                spec = group.kv_cache_spec
                spec = getattr(spec, "kv_cache_specs", {}).get(name, spec)
                key = gid, backend.full_cls_name(), own, spec
                if key not in groups:
                    groups[key] = compat.AttentionGroup(backend, [], spec, gid)
                groups[key].layer_names.append(name)
        for group in groups.values():
            size = kernel_block_sizes and kernel_block_sizes[group.kv_cache_group_id]
            group.create_metadata_builders(self.vllm_config, self.device, size)
        self.draft_attn_groups = list(groups.values())
        self._slot_buffers = {
            group.kv_cache_group_id: torch.zeros_like(self._slot_mapping_buffer)
            for group in self.draft_attn_groups
        }

    def dummy_run(
        self,
        num_tokens: int,
        use_cudagraphs: bool = True,
        is_graph_capturing: bool = False,
        slot_mappings: dict[str, torch.Tensor] | None = None,
    ) -> None:
        """Runs the model on meaningless tokens, in its own tensor-parallel group; writes no KV.

        Args:
            num_tokens: of a pass.
            use_cudagraphs: run the passes as CUDA graphs, and capture those that are missing.
            is_graph_capturing: make one pass only.
            slot_mappings: not used; vLLM takes slots from `_get_slot_mapping` once there is KV.
        """
        graphs = use_cudagraphs and not self.speculative_config.enforce_eager
        layers: Any = dict.fromkeys(self.layer_names) if self._slot_buffers else None
        with self.tp_scope():
            super().dummy_run(num_tokens, graphs, is_graph_capturing, layers)

    def _get_slot_mapping(
        self, num_tokens: int, slot_mapping: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """The slots of a dummy run, in the buffers that graphs read: no token has one."""
        slots = {gid: buffer[:0] for gid, buffer in self._slot_buffers.items()}
        return self.slot_mapping(num_tokens, slots)

    def execution(self, total: int) -> tuple[Any, int, torch.Tensor | None]:
        """How a pass of `total` tokens runs: vLLM's mode of graphs, its tokens with padding, and
        those of each data-parallel rank.

        vLLM's own answer, without its search for a graph where there can be none.
        """
        if self._is_eager:
            return compat.CUDAGraphMode.NONE, total, None
        found: tuple[Any, int, torch.Tensor | None]
        found = self._determine_batch_execution_and_padding(total)
        return found

    def attention_metadata(self, common: Mapping[int, Any]) -> dict[str, Any]:
        """Layer -> its attention metadata; `common` is vLLM's, by KV cache group."""
        by_layer: dict[str, Any] = {}
        for group in self.draft_attn_groups:
            built = group.build_metadata_for_drafting(common[group.kv_cache_group_id], 0)
            by_layer |= dict.fromkeys(group.layer_names, built)
        return by_layer

    def slot_mapping(self, padded: int, slots: Mapping[int, torch.Tensor]) -> dict[str, Any]:
        """Layer -> the slots of a pass, placed like its other inputs: see `placed`.

        Args:
            padded: tokens of the pass with padding, which gets no slot.
            slots: KV cache group -> int64 [T].
        """
        by_group = {}
        for gid, buffer in self._slot_buffers.items():
            used = slots[gid].shape[0]
            by_group[gid] = self.placed(buffer, slots[gid], padded)
            if used < padded:
                by_group[gid][used:] = -1  # vLLM's mark of a token without a slot
        return {
            name: by_group[group.kv_cache_group_id]
            for group in self.draft_attn_groups
            for name in group.layer_names
        }

    def placed(self, buffer: torch.Tensor, values: torch.Tensor, padded: int) -> torch.Tensor:
        """An input of a pass, with padding, where the model reads it: [padded, ...].

        A CUDA graph reads one address, and compiled code was made for vLLM's buffers, so the values
        are copied there. A model that runs eagerly reads them where they are, and may overwrite
        them: nothing may read them after the pass.

        Args:
            buffer: [`padded` or more, ...], vLLM's, of the dtype that the model reads.
            values: [T, ...].
        """
        if self._is_eager and values.shape[0] == padded:
            return values.to(buffer.dtype)
        buffer[: values.shape[0]] = values
        return buffer[:padded]

    def _create_draft_vllm_config(self) -> Any:
        """vLLM's, with the draft's own sliding window instead of the target's.

        It is the window of layers whose model names none for each layer.
        """
        config = super()._create_draft_vllm_config()
        window = window_of_all_layers(self.draft_model_config.hf_text_config)
        if config.cache_config.sliding_window == window:
            return config
        return replace(config, cache_config=replace(config.cache_config, sliding_window=window))

    def _prepare(self, model: torch.nn.Module) -> None:
        """Adds parameters that the checkpoint has and vLLM's class lacks."""

    def _get_model(self) -> torch.nn.Module:
        config = self._create_draft_vllm_config()
        loader = compat.get_model_loader(config.load_config)
        load_weights = loader.load_weights

        def load_and_measure(model: torch.nn.Module, *args: Any) -> None:
            self._prepare(model)
            load_weights(model, *args)
            # Measured here: on CPU, vLLM packs the weights into hidden buffers afterwards.
            for name, weight in model.named_parameters():
                self._sizes[name] = weight.numel() * weight.element_size()

        loader.load_weights = load_and_measure
        layers = config.compilation_config.static_forward_context
        with compat.set_model_tag(self.prefix), layers_of_one_model(layers, self.prefix):
            model: torch.nn.Module = loader.load_model(
                vllm_config=config,
                model_config=self.draft_model_config,
                prefix=self.prefix,
            )
        return model


class LoadedDraft(NamedDraft, compat.DraftModelProposer):
    """vLLM's draft model with layers named after its proposer."""

    def _raise_if_draft_tp_mismatch(self) -> None:
        """Allows another size than the target's: see `tensor_parallel`.

        vLLM refuses it because its ranks overwrote each other's compiled code.
        """
