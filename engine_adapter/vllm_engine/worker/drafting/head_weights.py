"""Loads heads with vLLM's own loaders: EAGLE heads, MTP layers, assistants, DFlash, DSpark heads.

What they have in common with draft models is in `weights`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from engine_adapter.proposers import dspark
from engine_adapter.proposers.checkpoint import Checkpoint
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.eagle import FC_BIAS
from engine_adapter.proposers.gemma4_assistant import kv_sources
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.dflash_norms import patch_context_norms
from engine_adapter.vllm_engine.worker.drafting.draft_config import EAGLE_CONFIGS, complete
from engine_adapter.vllm_engine.worker.drafting.weights import LoadedModel


class _Head(LoadedModel):
    """A head: it reads states of the target, and may share its embeddings and output layer.

    Attributes:
        reads_aux_layers: whether it reads outputs of the target's layers, instead of the target's
            final hidden states.
    """

    reads_aux_layers: bool

    def _share_ends(self, target: torch.nn.Module) -> None:
        """Takes the target's layers where the checkpoint has none, or equal ones; these count not.

        MTP layers always do, since their checkpoint is the target's. The layers of a target with
        LoRA adapters are taken without them.

        Raises:
            ValueError: neither the checkpoint nor the target has embeddings.
        """
        text_model = _text_model(target)
        inner, head = getattr(text_model, "model", text_model), self.model.model
        embeddings = _base(getattr(inner, "embed_tokens", getattr(inner, "embedding", None)))
        # Idefics 3 has its output layer beside its language model.
        output = _base(getattr(text_model, "lm_head", getattr(target, "lm_head", None)))
        shared = []
        if embeddings is None:
            if not getattr(self.model, "has_own_embed_tokens", False):
                raise ValueError("neither its checkpoint nor the target has embeddings of tokens")
        elif self._lacks("embed_tokens", head, embeddings):
            head.embed_tokens = embeddings
            shared.append(embeddings)
        if output is not None and self._lacks("lm_head", self.model, output):
            self.model.lm_head = output
            # The layers of some models have an output layer of their own each.
            layers: Any = getattr(head, "layers", ())
            for layer in layers.values() if isinstance(layers, torch.nn.ModuleDict) else layers:
                layer_head: Any = getattr(layer, "shared_head", None)
                if hasattr(layer_head, "head"):
                    layer_head.head = output
            shared.append(output)
        self._share_indices(inner)
        modules = self.model.named_modules(remove_duplicate=False)
        within = tuple(f"{name}." for name, module in modules if module in shared)
        self._sizes = {k: size for k, size in self._sizes.items() if not k.startswith(within)}

    def _lacks(self, name: str, holder: torch.nn.Module, layer: torch.nn.Module) -> bool:
        """Whether the target's `layer` is to be the head's `name`, a layer of `holder`."""
        has_own = getattr(self.model, f"has_own_{name}", None)
        if has_own is None:  # MTP layers
            return True
        weight = getattr(getattr(holder, name, None), "weight", None)
        target_weight = getattr(layer, "weight", None)
        if not isinstance(weight, torch.Tensor) or not isinstance(target_weight, torch.Tensor):
            return not has_own
        if not has_own:
            # An EAGLE head reads embeddings of its own width.
            return name != "embed_tokens" or weight.shape[-1] == target_weight.shape[-1]
        # Compared on the host: on the device it would take as much memory again.
        return weight.shape == target_weight.shape and torch.equal(
            weight.cpu(), target_weight.cpu()
        )

    def _share_indices(self, target: torch.nn.Module) -> None:
        """Gives layers of sparse attention the target's buffer of the tokens that they read."""
        buffer = getattr(target, "topk_indices_buffer", None)
        if buffer is None:
            return
        for module in self.model.model.modules():
            if hasattr(module, "topk_indices_buffer"):
                module.topk_indices_buffer = buffer


class LoadedHead(_Head):
    """An EAGLE or EAGLE-3 head, or the target's MTP layers.

    Attributes:
        hidden_states: [as many as `input_ids`, H], where a graph reads the states.
    """

    hidden_states: torch.Tensor

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.hidden_states = self._new_buffer(self.dtype, self._states_width)
        complete(self.draft_model_config.hf_config)
        # EAGLE-3's own are combined; some heads say that they read the final states.
        within = getattr(self.draft_model_config.hf_config, "eagle_config", None) or {}
        is_eagle3 = self._speculative_config.method == "eagle3"
        self.reads_aux_layers = is_eagle3 and within.get("use_aux_hidden_state", True)

    @property
    def _states_width(self) -> int:
        """The width of the states that it reads."""
        return self.hidden_size

    def _prepare(self, model: torch.nn.Module) -> None:
        head = self.draft_model_config
        if head.hf_config.model_type not in EAGLE_CONFIGS:
            return
        if FC_BIAS in Checkpoint(head.model).shapes:
            layer: Any = model.get_submodule("model.fc")
            bias = torch.nn.Parameter(torch.zeros_like(layer.weight[:, 0]), requires_grad=False)
            layer.register_parameter("bias", bias)

    def _dummy_inputs(self, padded: int) -> dict[str, torch.Tensor | None]:
        return super()._dummy_inputs(padded) | {"hidden_states": self.hidden_states[:padded]}


class LoadedQueryHead(LoadedHead):
    """An assistant of Gemma 4: its layers have queries alone, and read the target's KV."""

    @property
    def _states_width(self) -> int:
        width: int = self._speculative_config.target_model_config.get_hidden_size()
        return width

    def _attention_fields(self) -> dict[str, Any]:
        """The target's attention backend, whose KV it reads."""
        return {"backend": self.vllm_config.attention_config.backend}

    def _share_ends(self, target: torch.nn.Module) -> None:
        # Its output layer keeps the matrix of the embeddings that it gives up.
        own_matrix = self._sizes["model.embed_tokens.weight"]
        super()._share_ends(target)
        self._sizes["lm_head.weight"] = own_matrix
        text_model = _text_model(target)
        sources = kv_sources(vars(self._speculative_config.target_model_config.hf_text_config))
        kinds = self.draft_model_config.hf_text_config.layer_types
        for layer, kind in zip(self.model.model.layers, kinds, strict=True):
            source = text_model.model.layers[sources[kind]].self_attn.attn
            _read_kv_of(layer.self_attn.attn, source)


def _read_kv_of(layer: Any, source: Any) -> None:
    """Makes a layer of attention read another one's KV, with its scales.

    Raises `ValueError` if that KV has another shape.
    """
    shape, source_shape = ((each.num_kv_heads, each.head_size) for each in (layer, source))
    if shape != source_shape:
        raise ValueError(
            f"its layer {layer.layer_name} reads KV of {shape[0]} heads with {shape[1]} numbers; "
            f"the target's {source.layer_name} has {source_shape[0]} heads with {source_shape[1]}"
        )
    layer.kv_sharing_target_layer_name = source.layer_name
    for name in ("_k_scale", "_v_scale"):
        getattr(layer, name).data = getattr(source, name).data
        setattr(layer, f"{name}_float", getattr(source, f"{name}_float"))


class LoadedBlockHead(_Head):
    """A DFlash or DSpark head.

    Attributes:
        has_markov_head: whether it is a DSpark head, which adds to a draft's logits what follows
            from the draft before it.
        selector: vLLM's module that scores candidates in a DFlash2 head, or `None`.
        refiner: vLLM's module that scores them in an XPress head, or `None`.
        first_draft: the place in a block that the first draft is read from. At 0 stands the newest
            token, at 1 the first mask.
        mask_token: the token of a mask.
    """

    def __init__(self, spec: ProposerSpec, *args: Any) -> None:
        super().__init__(spec, *args)
        head = self.draft_model_config.hf_config
        within = getattr(head, "dflash_config", None) or {}
        self.has_markov_head = spec.method == dspark.METHOD.name
        self.first_draft = 0 if self.has_markov_head and dspark.from_newest(vars(head)) else 1
        self.mask_token: int = (vars(head) | within)["mask_token_id"]
        self.reads_aux_layers = within.get("use_aux_hidden_state", True)

    def _attention_fields(self) -> dict[str, Any]:
        head = self.draft_model_config.hf_config
        return {"use_non_causal": compat.dflash_has_any_non_causal(head)}

    def _group_metadata(self, group: Any, common: Any) -> Any:
        """See `LoadedModel._group_metadata`. Layers with the same window are causal alike."""
        return replace(common, causal=self._is_causal[group.layer_names[0]])

    def load_model(self, target_model: torch.nn.Module) -> None:
        """See `LoadedModel.load_model`."""
        super().load_model(target_model)
        names = self.model.get_draft_kv_cache_layer_names()
        # Inside a block.
        self._is_causal = dict(zip(names, self.model.get_draft_attn_causal(), strict=True))
        self.selector = getattr(self.model.model, "candidate_selector", None)
        self.refiner = getattr(self.model.model, "xpress_head", None)
        if self.device.type == "cpu":
            patch_context_norms(self.model.model)

    @property
    def needs_whole_blocks(self) -> bool:
        """Whether a draft depends on the size of its block beyond attention.

        The convolutions of DFlash2 count the places from the first block on; XPress reads the mean
        of a block's states.
        """
        return self.selector is not None or self.refiner is not None

    @property
    def num_candidates(self) -> int:
        """The tokens of a place that a DFlash2 or XPress head scores; 0 if these are all."""
        if self.selector is not None:
            return int(self.selector.top_k)
        assert self.refiner is not None
        return min(self.refiner.topc, self.refiner.vocab_size)

    @cached_property
    def _drafted(self) -> torch.Tensor | None:
        """The ids in the target of the tokens that the head drafts, int64 [V']; `None` for all."""
        id_offsets: torch.Tensor | None = self.model.draft_id_to_target_id
        if id_offsets is None:
            return None
        return torch.arange(len(id_offsets), device=id_offsets.device) + id_offsets

    def add_markov_bias(
        self, logits: torch.Tensor, places: torch.Tensor, tokens: torch.Tensor
    ) -> None:
        """Adds to logits what a DSpark head adds after the tokens before them, at any place.

        Args:
            logits: [N, V], changed in place. Of a head that drafts fewer tokens only these change.
            places: [N]; the bias does not depend on them.
            tokens: [N].
        """
        bias: torch.Tensor = self.model.markov_bias(self.model.markov_embed(tokens))
        if self._drafted is None:
            logits += bias
        else:
            logits.index_add_(1, self._drafted, bias)

    def candidates(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The candidates of places with hidden states [T, H], of a head that has some.

        Returns:
            int64 [T, K], the likeliest tokens; float32 [T, K], their logits.
        """
        if self.selector is not None and self.device.type != "cpu":
            likeliest: tuple[torch.Tensor, torch.Tensor] = self.model.compute_candidates(states)
            return likeliest
        values, tokens = self.model.compute_logits(states).float().topk(self.num_candidates)
        if self.selector is None:
            return tokens, values
        # vLLM's ranks on a CPU cannot exchange token ids, which are int64; they can logits.
        processor = self.model.candidate_logits_processor
        values *= processor.scale
        if processor.soft_cap is not None:
            values = torch.tanh(values / processor.soft_cap) * processor.soft_cap
        return tokens, values

    def context_slots(self, slots: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
        """The slots of some positions in each of its layers; `slots` are by KV cache group."""
        slots_by_layer = {
            name: slots[group.kv_cache_group_id]
            for group in self.draft_attn_groups
            for name in group.layer_names
        }
        return [slots_by_layer[name] for name in self.model.get_draft_kv_cache_layer_names()]


AnyHead = LoadedHead | LoadedBlockHead
"""Each kind of head."""


def _text_model(target: Any) -> Any:
    """The text model of a target; a multimodal one has it inside."""
    get_text_model = getattr(target, "get_language_model", None)
    return target if get_text_model is None else get_text_model()


def _base(layer: torch.nn.Module | None) -> torch.nn.Module | None:
    """A layer of the target without LoRA adapters."""
    return getattr(layer, "base_layer", layer)
