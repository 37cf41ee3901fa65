"""Loading draft models and heads by vLLM's own loaders, several of them in one engine.

vLLM names the layers of a draft the same for every draft. Here each has its proposer's name, so
that their KV keeps apart. What vLLM builds around the model (buffers, attention groups, CUDA-graph
keys) is used; the drafting itself is in `draft_model` and `draft_head`.
"""

import copy
from contextlib import AbstractContextManager
from typing import Any

import torch

from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.draft_model import TENSOR_PARALLEL_SIZE
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.drafting.tensor_parallel import tensor_parallel


class DraftConfig(compat.SpeculativeConfig):
    """vLLM's configuration of a draft model, for vocabularies that differ by padding too.

    vLLM compares sizes. What matters is the tokenizer, and those were compared before the start.
    """

    def verify_equal_vocab_size_if_draft_model(self) -> None:
        """Sizes may differ."""


def draft_vllm_config(spec: ProposerSpec, vllm_config: Any) -> Any:
    """The target's `VllmConfig` with the proposer's model as its draft model."""
    target = vllm_config.speculative_config
    config = copy.copy(vllm_config)  # shares the registry of layers with the target's
    config.speculative_config = DraftConfig(
        method=spec.method,
        model=spec.model,
        num_speculative_tokens=spec.num_speculative_tokens,
        target_model_config=target.target_model_config,
        target_parallel_config=target.target_parallel_config,
        draft_tensor_parallel_size=spec.options.get(TENSOR_PARALLEL_SIZE),
    )
    return config


def layer_prefix(spec: ProposerSpec) -> str:
    """What a proposer's layers are called. One component, as vLLM reads the numbers among them."""
    return f"draft:{spec.name.replace('.', ':')}"


class _Named:
    """Mixed into vLLM's proposers: layers under the proposer's name, weights that are counted."""

    def __init__(self, spec: ProposerSpec, vllm_config: Any, *device_and_runner: Any) -> None:
        self.prefix = layer_prefix(spec)
        self._sizes: dict[str, int] = {}
        arguments = (draft_vllm_config(spec, vllm_config), *device_and_runner)
        super().__init__(*arguments)

    def parallel(self) -> AbstractContextManager[None]:
        """Around whatever makes its layers or runs them."""
        return tensor_parallel(self.speculative_config.draft_tensor_parallel_size)

    def load_model(self, target_model: torch.nn.Module) -> None:
        """vLLM's."""
        with self.parallel():
            super().load_model(target_model)

    @property
    def weights_bytes(self) -> int:
        """What its own weights take, in bytes, on this rank."""
        return sum(self._sizes.values())

    @property
    def layer_names(self) -> set[str]:
        """Its attention layers."""
        names: set[str] = self._draft_attn_layer_names
        return names

    def _get_model(self) -> torch.nn.Module:
        config = self._create_draft_vllm_config()
        loader = compat.get_model_loader(config.load_config)
        load_weights = loader.load_weights

        def load_and_weigh(model: torch.nn.Module, *args: Any) -> None:
            load_weights(model, *args)
            # Counted here, since on CPU the weights are then packed into buffers out of sight.
            for name, weight in model.named_parameters():
                self._sizes[name] = weight.numel() * weight.element_size()

        loader.load_weights = load_and_weigh
        with compat.set_model_tag(self.prefix):
            model: torch.nn.Module = loader.load_model(
                vllm_config=config,
                model_config=self.draft_model_config,
                prefix=self.prefix,
            )
        return model


class LoadedDraft(_Named, compat.DraftModelProposer):
    """vLLM's draft model under a name of its own."""

    def _raise_if_draft_tp_mismatch(self) -> None:
        """Another size than the target's is wanted here.

        vLLM refuses it, as its ranks overwrote each other's compiled code; see `tensor_parallel`.
        """


class LoadedHead(_Named, compat.EagleProposer):
    """vLLM's EAGLE or EAGLE-3 head under a name of its own.

    Embeddings and output layer that the checkpoint lacks are the target's, and are not counted.
    """

    def _maybe_share_embeddings(self, target_language_model: torch.nn.Module) -> None:
        own = self.model.model.embed_tokens
        super()._maybe_share_embeddings(target_language_model)
        if (shared := self.model.model.embed_tokens) is not own:
            self.model.model.embed_tokens = _without_lora(shared)
            self._forget_sizes("model.embed_tokens.")

    def _maybe_share_lm_head(self, target_language_model: torch.nn.Module) -> None:
        own = getattr(self.model, "lm_head", None)
        super()._maybe_share_lm_head(target_language_model)
        if (shared := self.model.lm_head) is not own:
            self.model.lm_head = _without_lora(shared)
            self._forget_sizes("lm_head.")

    def _forget_sizes(self, prefix: str) -> None:
        self._sizes = {k: size for k, size in self._sizes.items() if not k.startswith(prefix)}


def _without_lora(layer: torch.nn.Module) -> torch.nn.Module:
    """The layer itself, where vLLM has wrapped it for adapters: drafts come from the base."""
    base: torch.nn.Module = getattr(layer, "base_layer", layer)
    return base
