"""`mtp`: the multi-token-prediction layer in the target's own checkpoint drafts k tokens.

Source: DeepSeek-V3, arXiv 2412.19437, section 2.2. From the target's hidden state of a position and
the embedding of the next token, a decoder layer predicts the token after it; embeddings and output
layer are the target's. It runs like an EAGLE head: for later drafts it reads the states that it
predicted itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from engine_adapter.proposers import draft_options
from engine_adapter.proposers.checkpoint import MAX_PARTS, Checkpoint, CheckpointError, Shape
from engine_adapter.proposers.contract import (
    Capabilities,
    ProposerMethod,
    ProposerSpec,
    TargetSizes,
)

NUM_LAYERS = "num_nextn_predict_layers"
"""The field of the target's configuration with the number of its MTP layers."""


@dataclass(frozen=True, slots=True)
class Family:
    """Where targets of one architecture keep their MTP layers.

    Attributes:
        projection: the name of the matrix [H, 2H] over embedding and state. In names, `{i}` is the
            layer's index among the MTP layers, `{n}` its index among all layers.
        norms: the names of its vectors [H].
        default: how many layers there are if the configuration does not tell.
    """

    projection: str
    norms: tuple[str, ...]
    default: int = 0

    def tensors(self, i: int, num_hidden_layers: int, hidden_size: int) -> dict[str, Shape]:
        """The shapes of the tensors that only the i-th MTP layer has, by name."""
        shapes: dict[str, Shape] = {self.projection: (hidden_size, 2 * hidden_size)}
        shapes |= dict.fromkeys(self.norms, (hidden_size,))
        n = num_hidden_layers + i
        return {f"{name.format(i=i, n=n)}.weight": shape for name, shape in shapes.items()}


_FOLLOWING = Family(
    "model.layers.{n}.eh_proj",
    tuple(f"model.layers.{{n}}.{part}" for part in ("enorm", "hnorm", "shared_head.norm")),
)
"""Of targets whose MTP layers follow their own, numbered on."""

FAMILIES: Mapping[str, Family] = {
    "MiMoForCausalLM": Family(
        "model.mtp_layers.{i}.input_proj",
        tuple(f"model.mtp_layers.{{i}}.{part}_layernorm" for part in ("token", "hidden", "final")),
    ),
    "Ernie4_5_MoeForCausalLM": Family(
        "model.mtp_linear_proj.{i}", ("model.mtp_emb_norm.{i}", "model.mtp_hidden_norm.{i}")
    ),
    "Glm4MoeForCausalLM": _FOLLOWING,
    "Glm4MoeLiteForCausalLM": _FOLLOWING,
    "DeepseekV3ForCausalLM": _FOLLOWING,
    # Its MTP layers have the matrix and the norms in common. Published checkpoints have one layer,
    # which their configuration does not mention.
    "Qwen3NextForCausalLM": Family(
        "mtp.fc", ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"), default=1
    ),
}
"""The targets whose MTP layers the tests ran, by architecture."""


def _check(spec: ProposerSpec, target: TargetSizes) -> None:
    assert target.model is not None
    checkpoint = Checkpoint(target.model, revision=target.revision)
    family = _family(checkpoint)
    layers = checkpoint.integer(NUM_LAYERS, at_least=0, at_most=MAX_PARTS, default=family.default)
    if not layers:
        raise checkpoint.field_error(NUM_LAYERS, "must be at least 1: the target has no MTP layers")
    if (k := spec.num_speculative_tokens) > layers and k % layers:
        raise CheckpointError(  # vLLM's rule, for layers that are used in turn
            f"num_speculative_tokens must be at most {layers}, the number of MTP layers, or a "
            f"multiple of it; it is {k}",
            "num_speculative_tokens",
        )
    num_target_layers, needed = checkpoint.integer("num_hidden_layers"), dict[str, Shape]()
    for i in range(layers):
        needed |= family.tensors(i, num_target_layers, target.hidden_size)
    if not needed.keys() & checkpoint.shapes.keys():
        raise CheckpointError(
            f"{target.model}: the target's MTP layers are missing ({', '.join(needed)}): this copy "
            "was saved without them"
        )
    checkpoint.check_tensors(needed, checkpoint.shapes)


def _family(checkpoint: Checkpoint) -> Family:
    architectures = checkpoint.config.get("architectures")
    family = (
        FAMILIES.get(architectures[0])
        if isinstance(architectures, list) and architectures
        else None
    )
    if family is None:
        family_names = ", ".join(FAMILIES)
        message = (
            f"must be one of {family_names}: the MTP layers of other targets have not been run"
        )
        raise checkpoint.field_error("architectures", message)
    return family


METHOD = ProposerMethod(
    name="mtp",
    capabilities=Capabilities(draft_kv=True),
    default_k=1,
    options=draft_options.HEAD_OPTIONS,
    validate=draft_options.validate,
    create=lambda spec, host: host.draft_head(spec),
    check=_check,
)
"""The entry in `METHODS`."""
