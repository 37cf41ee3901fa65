"""vLLM's configurations of draft models and heads, made from a proposer and the target's."""

import copy
from typing import Any

from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.draft_model import TENSOR_PARALLEL_SIZE
from engine_adapter.proposers.eagle import aux_layers
from engine_adapter.vllm_engine import compat

EAGLE_CONFIGS = ("eagle", "speculators")
"""The `model_type` of vLLM's configurations of EAGLE heads."""


class DraftConfig(compat.SpeculativeConfig):
    """vLLM's configuration of a draft model; vocabularies may differ in padding.

    vLLM compares the sizes. Only the tokenizers must agree, and they were compared before the
    start.
    """

    def verify_equal_vocab_size_if_draft_model(self) -> None:
        """Sizes may differ."""


def draft_vllm_config(spec: ProposerSpec, vllm_config: Any) -> Any:
    """The target's `VllmConfig`, with the proposer's model as its draft model.

    For a proposer without one this is the target's checkpoint, as MTP layers need it.
    """
    target = vllm_config.speculative_config
    config = copy.copy(vllm_config)  # shares the registry of layers with the target's
    config.additional_config = vllm_config.additional_config.compiled_for(spec.name)
    # Without a model of its own, vLLM takes the target's, but not the target's revision.
    within = None if spec.model else target.target_model_config
    config.speculative_config = DraftConfig(
        method=spec.method,
        model=spec.model,
        revision=within and within.revision,
        code_revision=within and within.code_revision,
        num_speculative_tokens=spec.num_speculative_tokens,
        target_model_config=target.target_model_config,
        target_parallel_config=target.target_parallel_config,
        draft_tensor_parallel_size=spec.options.get(TENSOR_PARALLEL_SIZE),
    )
    return config


def window_of_all_layers(text_config: Any) -> int | None:
    """The sliding window of a model whose layers all have it, as vLLM decides for a target."""
    kinds = getattr(text_config, "layer_types", None) or ()
    if set(kinds) - {"sliding_attention"}:
        return None
    window: int | None = getattr(text_config, "sliding_window", None)
    return window


def complete(head: Any) -> None:
    """Adds to an EAGLE head's configuration what vLLM's classes read elsewhere."""
    if head.model_type not in EAGLE_CONFIGS:
        return
    # In EAGLE's it is whether `fc` has a bias; vLLM would give one to the attention.
    head.bias = False
    # vLLM counts only the layers that `eagle_config` names.
    if layers := aux_layers(vars(head)):
        head.num_aux_hidden_states = len(layers)
