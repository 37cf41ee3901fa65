"""Loads heads with vLLM's own loaders: EAGLE heads, MTP layers, DFlash and DSpark heads.

What they have in common with draft models is in `weights`.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from engine_adapter.proposers import dspark
from engine_adapter.proposers.checkpoint import Checkpoint
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.eagle import FC_BIAS
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.dflash_norms import patch_context_norms
from engine_adapter.vllm_engine.worker.drafting.draft_config import EAGLE_CONFIGS, complete
from engine_adapter.vllm_engine.worker.drafting.weights import NamedDraft


class _SharesEnds:
    """Mixed into vLLM's proposers of heads: embeddings and output layer may be the target's.

    A checkpoint without one of them uses the target's, which is not counted. MTP layers always do.
    """

    _sizes: dict[str, int]

    def _maybe_share_embeddings(self, target_language_model: torch.nn.Module) -> None:
        own = self.model.model.embed_tokens
        super()._maybe_share_embeddings(target_language_model)
        if (shared := self.model.model.embed_tokens) is not own:
            self._use_shared(shared)

    def _maybe_share_lm_head(self, target_language_model: torch.nn.Module) -> None:
        own = getattr(self.model, "lm_head", None)
        super()._maybe_share_lm_head(target_language_model)
        if (shared := self.model.lm_head) is not own:
            self._use_shared(shared)

    def _use_shared(self, layer: torch.nn.Module) -> None:
        """Takes the target's layer without LoRA, wherever vLLM put it, and does not count it.

        An MTP layer may have the output layer in another place too.
        """
        base: torch.nn.Module = getattr(layer, "base_layer", layer)
        everywhere = self.model.named_modules(remove_duplicate=False)
        names = [name for name, module in everywhere if module is layer]
        for name in names:
            self.model.set_submodule(name, base)
        within = tuple(f"{name}." for name in names)
        self._sizes = {k: size for k, size in self._sizes.items() if not k.startswith(within)}


class LoadedHead(_SharesEnds, NamedDraft, compat.EagleProposer):
    """vLLM's EAGLE or EAGLE-3 head, or the target's MTP layers, named after the proposer."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        complete(self.draft_model_config.hf_config)

    def _prepare(self, model: torch.nn.Module) -> None:
        head = self.draft_model_config
        if head.hf_config.model_type not in EAGLE_CONFIGS:
            return
        if FC_BIAS in Checkpoint(head.model).shapes:
            layer: Any = model.get_submodule("model.fc")
            bias = torch.nn.Parameter(torch.zeros_like(layer.weight[:, 0]), requires_grad=False)
            layer.register_parameter("bias", bias)


class LoadedBlockHead(_SharesEnds, NamedDraft, compat.DFlashProposer):
    """vLLM's DFlash or DSpark head, named after the proposer.

    Attributes:
        is_sequential: whether a draft's logits depend on the draft before it, as a DSpark head's.
        first_draft: the place in a block that the first draft is read from. At 0 stands the newest
            token, at 1 the first mask.
    """

    def __init__(self, spec: ProposerSpec, *args: Any) -> None:
        super().__init__(spec, *args)
        self.is_sequential = spec.method == dspark.METHOD.name
        fields = vars(self.draft_model_config.hf_config)
        self.first_draft = 0 if self.is_sequential and dspark.from_newest(fields) else 1

    def load_model(self, target_model: torch.nn.Module) -> None:
        """See `NamedDraft.load_model`."""
        super().load_model(target_model)
        if self.device.type == "cpu":
            patch_context_norms(self.model.model)

    @cached_property
    def _drafted(self) -> torch.Tensor | None:
        """The ids in the target of the tokens that the head drafts, int64 [V']; `None` for all."""
        id_offsets: torch.Tensor | None = self.model.draft_id_to_target_id
        if id_offsets is None:
            return None
        return torch.arange(len(id_offsets), device=id_offsets.device) + id_offsets

    def add_bias(self, logits: torch.Tensor, tokens: torch.Tensor) -> None:
        """Adds to logits what a sequential head adds after the tokens before them.

        Args:
            logits: [N, V], changed in place. Of a head that drafts fewer tokens only these change.
            tokens: [N].
        """
        bias: torch.Tensor = self.model.markov_bias(self.model.markov_embed(tokens))
        if self._drafted is None:
            logits += bias
        else:
            logits.index_add_(1, self._drafted, bias)

    def context_slots(self, slots: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
        """The slots of some positions in each of its layers; `slots` are by KV cache group."""
        of_layer = {
            name: slots[group.kv_cache_group_id]
            for group in self.draft_attn_groups
            for name in group.layer_names
        }
        return [of_layer[name] for name in self.model.get_draft_kv_cache_layer_names()]


AnyHead = LoadedHead | LoadedBlockHead
"""Each kind of head."""
