"""Heads that draft blocks, in other layouts: fewer tokens, and the format of `speculators`."""

from typing import Any

import torch

from tests.engine_adapter.proposers.heads import Heads

_MARKOV = (
    *("markov_rank", "markov_head_type"),
    *("enable_confidence_head", "confidence_head_with_markov"),
)
"""The fields of a Markov head."""

_SELECTOR = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
"""The fields of a DFlash2 head."""

_OWN = (
    *("architectures", "block_size", "dflash_config", "mask_token_id", "target_layer_ids"),
    *("draft_vocab_size", "sample_from_anchor", "num_target_layers"),
    *_MARKOV,
)
"""The fields that do not describe a layer."""


_ARCHITECTURES = {
    "dflash": "DFlashSpeculator",
    "dflash2": "DFlash2Speculator",
    "dspark": "DSparkSpeculator",
}


def with_fewer_tokens(heads: Heads, drafted: int, seed: int = 0) -> Heads:
    """The head with a random output layer of its own, for a random part of the vocabulary."""
    generator = torch.Generator().manual_seed(3000 + seed)
    vocabulary, hidden = heads.config["vocab_size"], heads.config["hidden_size"]
    chosen = torch.randperm(vocabulary, generator=generator)[:drafted].sort().values
    known = torch.zeros(vocabulary, dtype=torch.bool)
    known[chosen] = True
    output = torch.randn(drafted, hidden, generator=generator) * hidden**-0.5
    made = {**heads.tensors, "lm_head.weight": output, "t2d": known}
    made["d2t"] = chosen - torch.arange(drafted)
    if (markov := "markov_head.markov_w2.weight") in made:
        made[markov] = made[markov][chosen].clone()
    return Heads(heads.config | {"draft_vocab_size": drafted}, made)


def as_speculators(
    heads: Heads,
    method: str,
    *,
    target: str = "the/target",
    own_embedding: bool = True,
    causal_windows: bool = True,
) -> Heads:
    """The head as the library `speculators` writes it.

    Args:
        method: its algorithm there: `dflash`, `dflash2` or `dspark`.
        target: what it names as its target.
        own_embedding: with false, the head has no embedding and uses the target's.
        causal_windows: whether layers with a window are causal inside a block.
    """
    config = heads.config
    inner = config.get("dflash_config", config)
    layer = {name: value for name, value in config.items() if name not in _OWN}
    head_fields = {name: inner[name] for name in (*_MARKOV, *_SELECTOR) if name in inner}
    from_newest = method == "dspark" and config.get("sample_from_anchor", True)
    k = config["block_size"] - (not from_newest)
    fields: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[method]],
        "speculators_model_type": method,
        "speculators_version": "0.6.0",
        "speculators_config": {
            "algorithm": method,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": k}],
            "verifier": {"name_or_path": target, "architectures": ["LlamaForCausalLM"]},
        },
        "aux_hidden_state_layer_ids": [i + 1 for i in inner["target_layer_ids"]],
        "block_size": config["block_size"],
        "draft_vocab_size": config.get("draft_vocab_size", config["vocab_size"]),
        "mask_token_id": inner["mask_token_id"],
        "sample_from_anchor": from_newest,
        "sliding_window_non_causal": not causal_windows,
        "target_hidden_size": None,
        "transformer_layer_config": layer,
    }
    speculator = Heads(fields | head_fields, dict(heads.tensors))
    if not own_embedding:
        speculator.tensors.pop("embed_tokens.weight", None)
    return speculator


def move_into_layer(heads: Heads, field: str) -> None:
    """Puts a field of a head in the format of `speculators` among those of its layers."""
    heads.config["transformer_layer_config"][field] = heads.config.pop(field)
