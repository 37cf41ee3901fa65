"""Loads draft models with vLLM's own loaders, several of them in one engine; heads likewise.

vLLM gives the layers of every draft model the same names. Here the names contain the proposer's,
so that each has its own KV. The drafting itself is in `paged_model` and `paged_head`. What only
heads have is in `head_weights`.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
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


class LoadedModel:
    """A draft model or a head, and what its passes read: buffers, attention groups, graphs.

    Args:
        spec: its proposer.
        vllm_config: the target's.
        device: of its weights.

    Attributes:
        vllm_config: the target's, with this model as its draft model.
        draft_model_config: vLLM's `ModelConfig` of this model.
        model: vLLM's module, once it is loaded.
        prefix: of its layers' names.
        dtype, hidden_size: of its hidden states.
        max_num_tokens: the most tokens of a pass.
        input_ids: int32 [`max_num_tokens` or more], positions: int64, as many: where a graph and
            compiled code read the inputs of a pass.
        hidden_states: where a graph reads the states of a head; `None` for a draft model.
        draft_attn_groups: vLLM's attention groups of its layers, once there is a KV cache.
        slot_buffers: KV cache group -> where a graph reads the slots, int64, as `input_ids`.
    """

    model: Any
    hidden_states: torch.Tensor | None = None

    def __init__(self, spec: ProposerSpec, vllm_config: Any, device: torch.device) -> None:
        self.prefix = layer_prefix(spec)
        self.vllm_config = draft_vllm_config(spec, vllm_config)
        self._speculative_config = self.vllm_config.speculative_config
        self.draft_model_config = self._speculative_config.draft_model_config
        self.device = device
        self.dtype: torch.dtype = vllm_config.model_config.dtype
        self.hidden_size: int = self.draft_model_config.get_hidden_size()
        self.max_num_tokens: int = vllm_config.scheduler_config.max_num_batched_tokens
        self.input_ids = self._new_buffer(torch.int32)
        self.positions = self._new_buffer(torch.int64)
        self.draft_attn_groups: list[Any] = []
        self._sizes: dict[str, int] = {}
        self._layer_names: set[str] = set()
        self.slot_buffers: dict[int, torch.Tensor] = {}
        self._is_eager: bool = vllm_config.model_config.enforce_eager
        self._graphs = compat.CudagraphDispatcher(self.vllm_config)

    def _new_buffer(self, dtype: torch.dtype, *width: int) -> torch.Tensor:
        """Zeros for each token of a pass with padding."""
        graphs = self.vllm_config.compilation_config.max_cudagraph_capture_size or 0
        size = max(self.max_num_tokens, graphs)
        return torch.zeros(size, *width, dtype=dtype, device=self.device)

    def tp_scope(self) -> AbstractContextManager[None]:
        """The tensor-parallel group in which its layers are created and run."""
        return tensor_parallel(self._speculative_config.draft_tensor_parallel_size)

    # -- loading -----------------------------------------------------------------------------

    def load_model(self, target_model: torch.nn.Module) -> None:
        """Loads the weights, in the model's own tensor-parallel group.

        Args:
            target_model: the loaded target, whose layers a head may share.

        Raises:
            ValueError: a layer keeps something else than the KV of each position.
        """
        layers = self.vllm_config.compilation_config.static_forward_context
        other_layers = set(layers)
        with self.tp_scope():
            self.model = self._read_model()
            self._share_ends(target_model)
        for name in sorted(set(layers) - other_layers):
            if not isinstance(layers[name], compat.AttentionLayerBase):
                continue
            layers[name].is_draft_layer = True  # vLLM's mark, since 0.33
            if (spec := layers[name].get_kv_cache_spec(self.vllm_config)) is not None:
                self._check_layer(layers[name], spec)
                self._layer_names.add(name)

    @staticmethod
    def _check_layer(layer: Any, spec: Any) -> None:
        if not isinstance(spec, compat.AttentionSpec):
            raise ValueError(
                f"it has layers of the kind {type(layer).__name__}; a draft model needs "
                "layers of attention, whose KV can be computed later"
            )

    def _layers_config(self) -> Any:
        """The configuration of vLLM's under which the layers are made.

        The attention backend is vLLM's choice for this model, and the sliding window, which counts
        for layers whose model names none for each, is this model's.
        """
        config = self.vllm_config
        cache = config.cache_config
        window = window_of_all_layers(self.draft_model_config.hf_text_config)
        if cache.sliding_window != window:
            cache = compat.replace(cache, sliding_window=window)
        return compat.replace(
            config,
            attention_config=compat.replace(
                config.attention_config, **{"backend": None, **self._attention_fields()}
            ),
            cache_config=cache,
            **self._config_fields(),
        )

    def _attention_fields(self) -> dict[str, Any]:
        """Other fields of the `AttentionConfig` of its layers."""
        return {}

    def _config_fields(self) -> dict[str, Any]:
        """Other fields of the `VllmConfig` of its layers."""
        return {}

    def _read_model(self) -> torch.nn.Module:
        config = self._layers_config()
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

    def _prepare(self, model: torch.nn.Module) -> None:
        """Adds parameters that the checkpoint has and vLLM's class lacks."""

    def _share_ends(self, target: torch.nn.Module) -> None:
        """Takes the target's embeddings and output layer, where the model has none of its own."""

    @property
    def weights_bytes(self) -> int:
        """Bytes of its own weights on this rank."""
        return sum(self._sizes.values())

    # -- KV ----------------------------------------------------------------------------------

    @property
    def layer_names(self) -> set[str]:
        """Its attention layers."""
        return self._layer_names

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
        return sorted(self.slot_buffers)

    def initialize_attn_backend(
        self, kv_cache_config: Any, kernel_block_sizes: list[int] | None = None
    ) -> None:
        """Creates the attention groups of its layers.

        Layers with and without a sliding window have metadata of their own, and layers may be in
        several KV cache groups.
        """
        layers = self.vllm_config.compilation_config.static_forward_context
        groups: dict[Any, Any] = {}
        for gid, group in enumerate(kv_cache_config.kv_cache_groups):
            for name in sorted(self.layer_names & set(group.layer_names)):
                backend = layers[name].get_attn_backend()
                layer_spec = layers[name].get_kv_cache_spec(self.vllm_config)
                spec = group.kv_cache_spec
                spec = getattr(spec, "kv_cache_specs", {}).get(name, spec)
                key = gid, backend.full_cls_name(), layer_spec, spec
                if key not in groups:
                    groups[key] = compat.AttentionGroup(backend, [], spec, gid)
                groups[key].layer_names.append(name)
        for group in groups.values():
            size = kernel_block_sizes and kernel_block_sizes[group.kv_cache_group_id]
            group.create_metadata_builders(self.vllm_config, self.device, size)
        self.draft_attn_groups = list(groups.values())
        gids = {group.kv_cache_group_id for group in self.draft_attn_groups}
        self.slot_buffers = {gid: self._new_buffer(torch.int64) for gid in sorted(gids)}

    def attention_metadata(
        self, common: Mapping[int, Any], *, captured: bool = False
    ) -> dict[str, Any]:
        """Layer -> its attention metadata.

        Args:
            common: vLLM's `CommonAttentionMetadata`, by KV cache group.
            captured: for a pass that a graph captures.
        """
        by_layer: dict[str, Any] = {}
        for group in self.draft_attn_groups:
            of_group = self._group_metadata(group, common[group.kv_cache_group_id])
            if captured:
                built = group.build_metadata_for_cudagraph_capture(of_group)
            else:
                built = group.build_metadata_for_drafting(of_group, 0)
            by_layer |= dict.fromkeys(group.layer_names, built)
        return by_layer

    def _group_metadata(self, group: Any, common: Any) -> Any:
        """What differs for the layers of an attention group in vLLM's `CommonAttentionMetadata`."""
        return common

    def slot_mapping(self, padded: int, slots: Mapping[int, torch.Tensor]) -> dict[str, Any]:
        """Layer -> the slots of a pass, placed like its other inputs: see `placed`.

        Args:
            padded: tokens of the pass with padding, which gets no slot.
            slots: KV cache group -> int64 [T].
        """
        by_group = {}
        for gid, buffer in self.slot_buffers.items():
            num_tokens = slots[gid].shape[0]
            by_group[gid] = self.placed(buffer, slots[gid], padded)
            if num_tokens < padded:
                by_group[gid][num_tokens:] = -1  # vLLM's mark of a token without a slot
        return {
            name: by_group[group.kv_cache_group_id]
            for group in self.draft_attn_groups
            for name in group.layer_names
        }

    # -- passes ------------------------------------------------------------------------------

    def initialize_cudagraph_keys(self, mode: Any) -> None:
        """Prepares the graphs of its pieces, if the target has graphs, by vLLM's mode."""
        modes = compat.CUDAGraphMode
        has_graphs = not self._is_eager and mode.mixed_mode() != modes.NONE
        self._graphs.initialize_cudagraph_keys(modes.PIECEWISE if has_graphs else modes.NONE)

    def execution(self, total: int, graphs: bool = True) -> tuple[Any, int]:
        """How a pass of `total` tokens runs: vLLM's mode of graphs, and its tokens with padding.

        Args:
            total: tokens.
            graphs: it may run as a graph, if there is one.
        """
        none = compat.CUDAGraphMode.NONE
        if self._is_eager:
            return none, total
        mode, graph = self._graphs.dispatch(total, valid_modes=None if graphs else {none})
        return mode, graph.num_tokens

    @torch.inference_mode()
    def dummy_run(self, num_tokens: int, graphs: bool) -> None:
        """Runs a pass on meaningless tokens, in its own tensor-parallel group; writes no KV.

        Args:
            num_tokens: of the pass.
            graphs: run it as a CUDA graph, and capture one that is missing.
        """
        mode, padded = self.execution(num_tokens, graphs)
        slots = {gid: buffer[:0] for gid, buffer in self.slot_buffers.items()}
        with (
            self.tp_scope(),
            compat.set_forward_context(
                None,
                self.vllm_config,
                num_tokens=padded,
                cudagraph_runtime_mode=mode,
                slot_mapping=self.slot_mapping(padded, slots),
            ),
        ):
            self.model(**self._dummy_inputs(padded))

    def _dummy_inputs(self, padded: int) -> dict[str, torch.Tensor | None]:
        ids, positions = self.input_ids[:padded], self.positions[:padded]
        return {"input_ids": ids, "positions": positions, "inputs_embeds": None}

    def placed(self, buffer: torch.Tensor, values: torch.Tensor, padded: int) -> torch.Tensor:
        """An input of a pass, with padding, where the model reads it: [padded, ...].

        A CUDA graph reads one address, and compiled code was made for these buffers, so the values
        are copied there. A model that runs eagerly reads them where they are, and may overwrite
        them: nothing may read them after the pass.

        Args:
            buffer: [`padded` or more, ...], of the dtype that the model reads.
            values: [T, ...].
        """
        if self._is_eager and values.shape[0] == padded:
            return values if values.dtype is buffer.dtype else values.to(buffer.dtype)
        buffer[: values.shape[0]] = values
        return buffer[:padded]


class LoadedDraft(LoadedModel):
    """A draft model."""

    def _config_fields(self) -> dict[str, Any]:
        """Its own ranks: they may be fewer than the target's, see `tensor_parallel`."""
        target = self.vllm_config.parallel_config
        parallel = compat.replace(self._speculative_config.draft_parallel_config, rank=target.rank)
        return {
            "quant_config": None,
            "parallel_config": parallel,
            "model_config": self.draft_model_config,
        }
