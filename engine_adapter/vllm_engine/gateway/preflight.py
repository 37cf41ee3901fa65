"""Checks before anything is loaded. Each failure names the setting and the remedy."""

from collections.abc import Set
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import structlog

from engine_adapter.proposers.contract import OptionError, ProposerSpec, TargetSizes
from engine_adapter.proposers.methods import get_method
from engine_adapter.proposers.vocabulary_map import (
    HETEROGENEOUS_VOCAB,
    load_tokenizer,
    map_vocabularies,
)
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.vllm_engine import compat, state_layers
from engine_adapter.vllm_engine.gateway.arguments import tokenizer_source
from engine_adapter.vllm_engine.gateway.proven_models import is_proven

log = structlog.get_logger(__name__)

CHUNKED = "chunked_attention"

LAYER_KINDS = {"full_attention", "sliding_attention", CHUNKED}
"""The kinds of layers, as configurations name them, that a draft model can have."""

TARGET_KINDS = LAYER_KINDS | {"linear_attention", "conv", "hybrid", "moe", "mlp"}
"""Those of a target. `check_state` knows more of the recurrent ones."""

NOT_CAUSAL = {"hrm_text"}
"""Types of models whose attention sees the tokens of a step that come after a token.

They are trained to read prompts so. In vLLM (`PrefillPrefixLMAttention`) they read drafts so too,
and a token would depend on the drafts after it.
"""

UNLOADABLE = {"dbrx"}
"""Types of models whose weights vLLM cannot load.

`DbrxModel.load_weights` looks for `experts.w13_weight`, whose name now is
`experts.routed_experts.w13_weight`, and ends in a `KeyError`.
"""

SIGMOID_ROUTERS = {"laguna", "minimax_m2"}
"""Types of models that choose experts by a sigmoid, without groups of experts.

vLLM's `CPURouter` has that choice by softmax only, and asserts so in the first pass.
"""


def check_libraries() -> str:
    """The installed vLLM's version.

    Raises:
        EngineConfigError: vLLM is not installed or not supported, or an installed torchvision
            breaks the import of transformers.
    """
    version = compat.installed_version()
    supported = " or ".join(f"{release}.*" for release in compat.SUPPORTED)
    if version is None:
        raise EngineConfigError(
            "engine",
            "vLLM is not installed; install specgate[cpu] or specgate[vllm] "
            f"(supported: {supported}), or use --engine fake",
        )
    if ".".join(version.split(".")[:2]) not in compat.SUPPORTED:
        raise EngineConfigError("engine", f"vLLM {version} is not supported; install {supported}")
    if find_spec("torchvision") is not None:
        try:
            import torchvision  # noqa: F401
        except Exception as error:
            raise EngineConfigError(
                "engine",
                f"the installed torchvision does not fit torch ({error}) and breaks the import of "
                "transformers; for a CPU run: python -m "
                "engine_adapter.vllm_engine.torchvision_on_cpu",
            ) from error
    return version


def check_models(config: EngineConfig) -> None:
    """Checks the target and every proposer with weights; reads configurations and headers only.

    Logs a warning for a model whose architecture is not in the table of docs/models.md.

    Raises:
        EngineConfigError: a folder is missing, a model has layers that are not proven, a draft
            model has another tokenizer without an option that allows it, or one of which too
            little maps, or a head's weights do not fit the target.
    """
    revision = config.arguments.get("revision")
    target = _load_config("model", config.model, config, revision)
    _check_layers(target, TARGET_KINDS)
    text = target.get_text_config()
    _check_experts(text)
    _warn_unless_proven(config.model, target)
    sizes = TargetSizes(
        text.hidden_size,
        text.vocab_size,
        text.num_hidden_layers,
        int(config.arguments.get("tensor_parallel_size") or 1),
        config.model,
        revision,
    )
    _check_draft_models(config, text)
    for spec in config.proposers:
        try:
            get_method(spec.method).check(spec, sizes)
        except ValueError as error:
            raise EngineConfigError("proposer", f"{spec.name}: {error}") from error


def target_architectures(config: EngineConfig) -> tuple[str, ...]:
    """The target's architectures, as its configuration names them. Raises `EngineConfigError`."""
    target = _load_config("model", config.model, config, config.arguments.get("revision"))
    return tuple(target.architectures or ())


def _check_draft_models(config: EngineConfig, target_text: Any) -> None:
    target: Any = None
    for spec in config.proposers:
        if not get_method(spec.method).capabilities.tokenizer or spec.model is None:
            continue
        try:
            draft_config = _load_config("model", spec.model, config)
            _check_layers(draft_config, LAYER_KINDS)
            _check_same_chunks(draft_config.get_text_config(), target_text)
            _warn_unless_proven(spec.model, draft_config)
            draft = _tokenizer("model", spec.model, None, config)
        except EngineConfigError as error:
            raise EngineConfigError("proposer", f"{spec.name}: {error}") from error
        if target is None:
            target = _tokenizer("tokenizer", *tokenizer_source(config), config)
        if spec.options[HETEROGENEOUS_VOCAB]:
            size = target_text.vocab_size
            _check_mapping(spec, target, draft, size, draft_config.get_text_config())
        elif draft.get_vocab() != target.get_vocab():
            raise EngineConfigError(
                "proposer",
                f"{spec.name}: the tokenizer of {spec.model} differs from the target's; set "
                f'"{HETEROGENEOUS_VOCAB}": true to draft the tokens that both have, or choose a '
                "draft model with the same tokenizer",
            )


def _check_mapping(spec: ProposerSpec, target: Any, draft: Any, size: int, text: Any) -> None:
    try:
        mapped = map_vocabularies(target, draft, size, text.vocab_size)
    except OptionError as error:
        raise EngineConfigError("proposer", f"{spec.name}: {error}", error.option) from error
    log.info("vocabulary_mapped", proposer=spec.name, detail=str(mapped))


def _load_config(
    setting: str, model: str, config: EngineConfig, revision: str | None = None
) -> Any:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        if model.startswith(("/", ".", "~")) and not Path(model).expanduser().is_dir():
            raise EngineConfigError(setting, f"the folder {model} does not exist")
        return AutoConfig.from_pretrained(
            model,
            revision=revision or "main",
            trust_remote_code=bool(config.arguments.get("trust_remote_code")),
        )
    # RuntimeError: the user named behind "~" does not exist. StrictDataclassError: a field's value.
    except (OSError, RuntimeError, ValueError, StrictDataclassError) as error:
        raise EngineConfigError(setting, f"{model}: {error}") from error


def _chunk(text_config: Any) -> int | None:
    """The tokens of the chunks of attention, if a model has any."""
    return text_config.attention_chunk_size if CHUNKED in _kinds(text_config) else None


def _check_same_chunks(draft: Any, target: Any) -> None:
    """Checks chunks of a draft model: block size and KV cache groups are checked for a target's."""
    if (chunk := _chunk(draft)) and chunk != _chunk(target):
        raise EngineConfigError(
            "model",
            f"{draft.model_type} has attention over chunks of {chunk} tokens, so it drafts "
            "only for a target with chunks of that size: choose another draft model",
        )


def check_chunks(vllm_config: Any) -> None:
    """Checks that the target's chunks of attention consist of whole blocks.

    vLLM asserts it when the first request runs.

    Raises:
        EngineConfigError: they do not.
    """
    chunk = _chunk(vllm_config.model_config.hf_text_config)
    if chunk and chunk % (size := vllm_config.cache_config.block_size):
        raise EngineConfigError(
            "block_size",
            f"{size} must divide {chunk}, the tokens of the target's chunks of attention",
        )


def check_state(vllm_config: Any) -> None:
    """Checks layers with a state, which the target's configuration need not tell, and attention.

    Reads no weights: it asks vLLM's class of the model.

    Raises:
        EngineConfigError: the target has such layers without attention, of a kind that cannot
            follow rejected drafts, or layers in a dtype without kernels; or see `check_chunks`.
    """
    check_chunks(vllm_config)
    _check_latent_attention(vllm_config)
    model = vllm_config.model_config
    # Granite 4 without Mamba has a class with a state, and attention only.
    if not model.is_hybrid and not model.is_attention_free:
        return
    kind = model.hf_text_config.model_type
    if model.is_attention_free:
        reason = "no attention beside recurrent layers, and vLLM counts the accepted drafts only of"
        reason += " models that have both: choose another model"
        raise EngineConfigError("model", f"{kind} has {reason}")
    cls, _ = model.registry.resolve_model_cls(model.architectures, model_config=model)
    layers = state_layers.layers_of(cls)
    if fault := state_layers.fault_of(layers):
        raise EngineConfigError("model", f"{kind}: {fault}")
    dtype = str(model.dtype).removeprefix("torch.")
    if (
        compat.current_platform.is_cpu()
        and dtype != "bfloat16"
        and state_layers.GATED_DELTA in {layer.__name__ for layer in layers}
    ):
        reason = f"must be bfloat16 for {kind} on a CPU, got {dtype}: vLLM's kernels of gated delta"
        raise EngineConfigError("dtype", f"{reason} networks have no other dtype there")


def _check_latent_attention(vllm_config: Any) -> None:
    """On a CPU with AMX, vLLM takes kernels for bfloat16 in any dtype, and fails as it loads."""
    import torch

    model = vllm_config.model_config
    if not model.use_mla or not compat.current_platform.is_cpu():
        return
    dtype = str(model.dtype).removeprefix("torch.")
    attention_config = vllm_config.attention_config
    is_reference = getattr(attention_config.backend, "name", None) == "CPU_MLA"
    if dtype != "bfloat16" and not is_reference and torch.cpu._is_amx_tile_supported():
        raise EngineConfigError(
            "dtype",
            f"must be bfloat16 for {model.hf_text_config.model_type} on a CPU with AMX, got "
            f"{dtype}: vLLM's kernels of latent attention have no other dtype there; or set "
            "attention_backend to CPU_MLA, which is slower",
        )


def _check_layers(model_config: Any, proven_kinds: Set[str]) -> None:
    if model_config.model_type in NOT_CAUSAL:
        raise EngineConfigError(
            "model",
            f"{model_config.model_type} has attention that is not causal, so that a token would "
            "depend on the drafts after it: choose another model",
        )
    if model_config.model_type in UNLOADABLE:
        raise EngineConfigError(
            "model",
            f"{model_config.model_type} has weights that vLLM cannot load: choose another model",
        )
    if kinds := sorted(_kinds(model_config.get_text_config()) - proven_kinds):
        raise EngineConfigError(
            "model",
            f"{model_config.model_type} ({', '.join(kinds)}) has layers whose cache is not proven "
            "to follow switches and rejected drafts: choose another model",
        )


def _kinds(text_config: Any) -> set[str]:
    return set(getattr(text_config, "layer_types", None) or ())


def _warn_unless_proven(model: str, model_config: Any) -> None:
    names = model_config.architectures
    if not is_proven(names):
        log.warning(
            "architecture_not_proven",
            model=model,
            architecture=", ".join(names or ()) or model_config.model_type,
            meaning="it is not in the table of docs/models.md, whose models have texts that were "
            "compared with stock vLLM's under every proposer",
        )


def _check_experts(text: Any) -> None:
    # The platform is vLLM's, whose import takes seconds: it is asked last.
    if text.model_type in SIGMOID_ROUTERS and compat.current_platform.is_cpu():
        raise EngineConfigError(
            "model",
            f"{text.model_type} has experts chosen by a sigmoid, which vLLM cannot do on CPU "
            "without groups of experts: choose another model",
        )


def _tokenizer(setting: str, model: str, revision: str | None, config: EngineConfig) -> Any:
    trust = bool(config.arguments.get("trust_remote_code"))
    try:
        return load_tokenizer(model, revision, trust_remote_code=trust)
    except (OSError, ValueError) as error:
        raise EngineConfigError(setting, f"{model}: {error}") from error
