"""`mtp`: a multi-token-prediction layer drafts k tokens; it is in the target's own checkpoint.

Source: DeepSeek-V3, arXiv 2412.19437, section 2.2. From the target's hidden state of a position and
the embedding of the next token, a decoder layer predicts the token after it; embeddings and output
layer are the target's. It runs like an EAGLE head: for later drafts it reads the states that it
predicted itself. A checkpoint of its own is a copy of the layer, or an assistant of Gemma 4.

The layers of targets that are not in `FAMILIES` are served with a warning: vLLM checks the tensors
as it loads them, and a text does not depend on drafts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from engine_adapter.proposers import draft_options, gemma4_assistant
from engine_adapter.proposers.checkpoint import MAX_PARTS, Checkpoint, CheckpointError, Shape
from engine_adapter.proposers.contract import (
    Capabilities,
    DraftHost,
    Proposer,
    ProposerMethod,
    ProposerSpec,
    TargetSizes,
)

log = structlog.get_logger(__name__)

NUM_LAYERS = "num_nextn_predict_layers"
"""The field of most targets' configurations with the number of their MTP layers."""

_QWEN_NUM_LAYERS = "mtp_num_hidden_layers"
"""The field of Qwen3.5's."""


@dataclass(frozen=True, slots=True)
class Family:
    """Where targets of one architecture keep their MTP layers.

    Attributes:
        projection: the name of the matrix [H, 2H] over embedding and state; "" for a target that
            the tests did not run. In names, `{i}` is the layer's index among the MTP layers, `{n}`
            its index among all layers.
        norms: the names of its vectors [H].
        field: the field of the configuration with the number of layers; `None` if vLLM always runs
            `default` layers.
        default: how many layers there are if the configuration does not tell.
    """

    projection: str
    norms: tuple[str, ...]
    field: str | None = NUM_LAYERS
    default: int = 0

    def num_layers(self, config: Checkpoint) -> int:
        """The number of MTP layers that the target's configuration states.

        Raises `CheckpointError` if the field is not an integer from 0 to `MAX_PARTS`.
        """
        if self.field is None:
            return self.default
        return config.integer(self.field, at_least=0, at_most=MAX_PARTS, default=self.default)

    def tensors(self, i: int, num_hidden_layers: int, hidden_size: int) -> dict[str, Shape]:
        """The shapes of the tensors that only the i-th MTP layer has, by name."""
        shapes: dict[str, Shape] = {self.projection: (hidden_size, 2 * hidden_size)}
        shapes |= dict.fromkeys(self.norms, (hidden_size,))
        n = num_hidden_layers + i
        return {f"{name.format(i=i, n=n)}.weight": shape for name, shape in shapes.items()}


def _family(projection: str, folder: str, *norms: str, **how: Any) -> Family:
    """A family whose projection and norms are in one folder of names."""
    return Family(f"{folder}.{projection}", tuple(f"{folder}.{norm}" for norm in norms), **how)


_FOLLOWING = _family("eh_proj", "model.layers.{n}", "enorm", "hnorm", "shared_head.norm")
"""Of targets whose MTP layers follow their own, numbered on."""

_IN_COMMON = "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"
"""The norms of targets whose MTP layers have the matrix and the norms in common."""

_QWEN3_5 = _family("fc", "mtp", *_IN_COMMON, field=_QWEN_NUM_LAYERS)

# Published checkpoints have three layers, of which vLLM runs the first.
_MIMO_V2 = _family(
    "eh_proj",
    "model.mtp.layers.{i}",
    *("enorm", "hnorm", "final_layernorm"),
    field=None,
    default=1,
)

FAMILIES: Mapping[str, Family] = {
    "MiMoForCausalLM": _family(
        "input_proj",
        "model.mtp_layers.{i}",
        *(f"{part}_layernorm" for part in ("token", "hidden", "final")),
    ),
    "MiMoV2FlashForCausalLM": _MIMO_V2,
    "MiMoV2ForCausalLM": _MIMO_V2,
    "Ernie4_5_MoeForCausalLM": Family(
        "model.mtp_linear_proj.{i}", ("model.mtp_emb_norm.{i}", "model.mtp_hidden_norm.{i}")
    ),
    "Glm4MoeForCausalLM": _FOLLOWING,
    "Glm4MoeLiteForCausalLM": _FOLLOWING,
    "GlmOcrForConditionalGeneration": _family(
        "eh_proj", "model.language_model.layers.{n}", "enorm", "hnorm", "shared_head.norm"
    ),
    "DeepseekV3ForCausalLM": _FOLLOWING,
    "Step3p5ForCausalLM": _FOLLOWING,
    "LongcatFlashForCausalLM": Family(
        "model.mtp.layers.{i}.eh_proj",
        ("model.mtp.layers.{i}.enorm.m", "model.mtp.layers.{i}.hnorm.m", "model.mtp.norm"),
        field=None,
        default=1,
    ),
    "HYV3ForCausalLM": _family("eh_proj", "model.layers.{n}", "enorm", "hnorm", "final_layernorm"),
    # Published checkpoints have one layer, which their configuration does not mention.
    "Qwen3NextForCausalLM": _family("fc", "mtp", *_IN_COMMON, default=1),
    "Qwen3_5ForCausalLM": _QWEN3_5,
    "Qwen3_5MoeForCausalLM": _QWEN3_5,
    "Qwen3_5ForConditionalGeneration": _QWEN3_5,
    "Qwen3_5MoeForConditionalGeneration": _QWEN3_5,
    "ExaoneMoeForCausalLM": _family("fc", "mtp", *_IN_COMMON),
    # Its layer is a number of layers, one after the other; the last one has one more norm.
    "NemotronHForCausalLM": _family("eh_proj", "mtp.layers.0", "enorm", "hnorm"),
}
"""The targets whose MTP layers the tests ran, by architecture."""


def _check(spec: ProposerSpec, target: TargetSizes) -> None:
    assert target.model is not None
    model = spec.model or target.model
    checkpoint = Checkpoint(model, revision=None if spec.model else target.revision)
    if _is_assistant(checkpoint):
        gemma4_assistant.check(checkpoint, target)
        return
    text_part = checkpoint.text_part()
    family = _family_of(checkpoint, text_part)
    layers = family.num_layers(text_part)
    if not layers:
        raise text_part.field_error(
            family.field or NUM_LAYERS, "must be at least 1: the target has no MTP layers"
        )
    if (k := spec.num_speculative_tokens) > layers and k % layers:
        raise CheckpointError(  # vLLM's rule, for layers that are used in turn
            f"num_speculative_tokens must be at most {layers}, the number of MTP layers, or a "
            f"multiple of it; it is {k}",
            "num_speculative_tokens",
        )
    if not family.projection:
        log.warning(
            "mtp_layers_not_compared",
            model=model,
            architecture=checkpoint.config.get("architectures"),
            meaning="drafts of the MTP layers of this architecture were not compared with those "
            "of stock vLLM; the texts do not depend on them",
        )
        return
    follows = "{n}" in family.projection
    num_target_layers = text_part.integer("num_hidden_layers") if follows else 0
    needed: dict[str, Shape] = {}
    for i in range(layers):
        needed |= family.tensors(i, num_target_layers, target.hidden_size)
    if not needed.keys() & checkpoint.shapes.keys():
        raise CheckpointError(
            f"{model}: the target's MTP layers are missing ({', '.join(needed)}): this copy "
            "was saved without them"
        )
    checkpoint.check_tensors(needed, checkpoint.shapes)


def _is_assistant(checkpoint: Checkpoint) -> bool:
    return checkpoint.config.get("model_type") in gemma4_assistant.MODEL_TYPES


def _create(spec: ProposerSpec, host: DraftHost) -> Proposer:
    if spec.model and _is_assistant(Checkpoint(spec.model)):
        return host.query_head(spec)
    return host.draft_head(spec)


def _family_of(checkpoint: Checkpoint, text_part: Checkpoint) -> Family:
    architectures = checkpoint.config.get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    if name in FAMILIES:
        return FAMILIES[name]
    if name.startswith("Gemma4"):
        message = "has no MTP layers: set model to the target's assistant"
        raise checkpoint.field_error("architectures", message)
    return Family("", (), _QWEN_NUM_LAYERS if _QWEN_NUM_LAYERS in text_part.config else NUM_LAYERS)


METHOD = ProposerMethod(
    name="mtp",
    capabilities=Capabilities(optional_model=True, draft_kv=True),
    default_k=1,
    options=draft_options.HEAD_OPTIONS,
    validate=draft_options.validate,
    create=_create,
    check=_check,
)
"""The entry in `METHODS`."""
