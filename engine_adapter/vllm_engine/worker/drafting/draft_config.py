"""vLLM's configurations of draft models and heads, made from a proposer and the target's."""

import copy
from contextlib import nullcontext
from typing import Any

from engine_adapter.proposers import dflash, dspark
from engine_adapter.proposers.checkpoint import Checkpoint
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.draft_model import METHOD, TENSOR_PARALLEL_SIZE
from engine_adapter.proposers.eagle import aux_layers
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.module_names import patch_speculative_config

SPECULATORS = "speculators"
EAGLE_CONFIGS = ("eagle", SPECULATORS)
"""The `model_type` of vLLM's configurations of EAGLE heads."""


class DraftConfig(compat.SpeculativeConfig):
    """vLLM's configuration of a draft model or a head, of the method that the proposer has."""

    def __setattr__(self, name: str, value: Any) -> None:
        # vLLM takes a model for a head if its path has a word such as "eagle3".
        if name != "method":
            super().__setattr__(name, value)

    def verify_equal_vocab_size_if_draft_model(self) -> None:
        """Vocabularies may differ in padding.

        Only the tokenizers must agree, and they were compared before the start.
        """

    @staticmethod
    def compose_draft_hf_overrides(target_hf_overrides: Any, *_: Any, **__: Any) -> Any:
        """How a draft model's configuration is changed: as the target's, if that is a function.

        vLLM adds a change that takes a model whose type can have MTP layers for these layers, and
        0.33 passes its options.
        This one is called only while vLLM's class has the name of this one, see
        `patch_speculative_config`: heads need vLLM's.
        """
        return target_hf_overrides if callable(target_hf_overrides) else {}


def draft_vllm_config(spec: ProposerSpec, vllm_config: Any) -> Any:
    """The target's `VllmConfig`, with the proposer's model as its draft model.

    For a proposer without one this is the target's checkpoint, as MTP layers need it.
    """
    target = vllm_config.speculative_config
    config = copy.copy(vllm_config)  # shares the registry of layers with the target's
    config.additional_config = vllm_config.additional_config.compiled_for(spec.name)
    # Without a model of its own, vLLM takes the target's, but not the target's revision.
    within = None if spec.model else target.target_model_config
    is_model = spec.method == METHOD.name
    with patch_speculative_config(DraftConfig) if is_model else nullcontext():
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
    _restore_layer_types(config.speculative_config.draft_model_config)
    if spec.method in (dflash.METHOD.name, dspark.METHOD.name):
        _restore_causality(config.speculative_config.draft_model_config)
    return config


def _restore_layer_types(draft_model_config: Any) -> None:
    """Gives Step 3.5's MTP layers their kinds of attention.

    They follow those of the target in `layer_types`, which vLLM 0.32 cuts to the target's. It then
    ends with an `IndexError` (github.com/vllm-project/vllm/issues/40000). Later releases have them
    in a field of their own.
    """
    head = draft_model_config.hf_config
    if head.model_type == "step3p5_mtp" and not hasattr(head, "mtp_layer_types"):
        checkpoint = Checkpoint(draft_model_config.model, revision=draft_model_config.revision)
        head.layer_types = checkpoint.text_part().config.get("layer_types")


def _restore_causality(draft_model_config: Any) -> None:
    """Makes only layers with a window causal, in a head in the format of `speculators`.

    vLLM takes `sliding_window_non_causal` for all layers of a DFlash head, and for none of a DSpark
    head (github.com/vllm-project/vllm/pull/56692). Without an order for all layers, it makes those
    with a window causal and no others.
    """
    head = draft_model_config.hf_config
    if head.model_type != SPECULATORS:
        return
    fields = Checkpoint(draft_model_config.model, revision=draft_model_config.revision).config
    getattr(head, "dflash_config", {}).pop("causal", None)
    head.is_causal = False if fields.get(dflash.NON_CAUSAL_WINDOWS) else None


def window_of_all_layers(text_config: Any) -> int | None:
    """The sliding window of a model whose layers all have it, as vLLM decides for a target.

    `use_sliding_window` can say that there is none. A configuration that is read as the class of
    its architecture has no `sliding_window` then; one in the format of `speculators` still has it.
    """
    if getattr(text_config, "use_sliding_window", None) is False:
        return None
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
