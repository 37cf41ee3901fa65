"""Medusa heads against their source's formulas, for every published layout."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_adapter.proposers.contract import Proposer
from engine_adapter.proposers.methods import get_method, parse_spec
from tests.engine_adapter.proposers.batches import batch
from tests.engine_adapter.proposers.heads import (
    VOCABULARY,
    Heads,
    RandomTarget,
    SecondBest,
    fasterdecoding_medusa,
    medusa,
    with_tensors,
)

ROWS = {"a": [1, 2, 3, 4], "b": [5, 5], "c": list(range(60)), "d": [90, 3, 90, 3, 90]}
KS = [3, 1, 4, 2]


class Host:
    def __init__(self, target: RandomTarget) -> None:
        self.target = target


def load(heads: Heads, folder: Path, target: RandomTarget, k: int = 1) -> Proposer:
    fields = {"name": "medusa", "model": heads.write(folder), "num_speculative_tokens": k}
    return get_method("medusa").create(parse_spec(fields), Host(target))  # type: ignore[arg-type]


def draft(heads: Heads, folder: Path, target: RandomTarget) -> list[list[int]]:
    given = batch(ROWS, k=KS, hidden_of=target.hidden_of, scattered=True)
    return [list(row) for row in load(heads, folder, target).propose(given).tokens]


def reference(of_vllm: Heads, target: RandomTarget, rank: int = 0) -> list[list[int]]:
    """Row by row and head by head in float64, after arXiv 2401.10774; from vLLM's layout.

    Each token is the likeliest, or as much further down as `rank` says.
    """
    states = batch(ROWS, hidden_of=target.hidden_of).hidden.double()
    tensors = {name: tensor.double() for name, tensor in of_vllm.tensors.items()}
    drafts: list[list[int]] = []
    for state, k in zip(states, KS, strict=True):
        drafts.append([])
        for head in range(k):
            x = state
            for layer in range(of_vllm.config["num_hidden_layers"]):
                y = tensors[f"blocks.{head}.layers.{layer}.weight"] @ x
                y = y + tensors.get(f"blocks.{head}.layers.{layer}.bias", 0)
                x = x + y * torch.sigmoid(y)
            shared = tensors.get("lm_head.weight", target.output.double())
            logits = tensors.get(f"lm_heads.{head}.weight", shared) @ x
            if "token_map" in tensors:
                logits = logits[of_vllm.tensors["token_map"]] if len(logits) == 96 else logits
            token = logits.argsort(descending=True)[rank]
            drafts[-1].append(int(tensors["token_map"][token] if "token_map" in tensors else token))
    return drafts


@pytest.mark.parametrize("output", ["each", "shared", "target"])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_drafts_for_every_k_equal_the_formulas(
    tmp_path: Path, output: str, bias: bool, num_layers: int
) -> None:
    target = RandomTarget()
    heads = medusa(output=output, bias=bias, num_layers=num_layers)
    assert draft(heads, tmp_path, target) == reference(heads, target)


@pytest.mark.parametrize("output", ["each", "target"])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("file", ["medusa_lm_head.safetensors", "medusa_lm_head.pt"])
def test_fasterdecodings_layout_gives_the_same_drafts_as_vllms(
    tmp_path: Path, output: str, num_layers: int, file: str
) -> None:
    target = RandomTarget()
    heads = fasterdecoding_medusa(output=output, num_layers=num_layers)
    heads.file = file
    of_vllm = medusa(output=output, num_layers=num_layers, bias=True)
    assert draft(heads, tmp_path, target) == reference(of_vllm, target)


def test_heads_beyond_those_in_the_configuration_are_used(tmp_path: Path) -> None:
    heads, target = fasterdecoding_medusa(num_heads=4), RandomTarget()
    heads.config["medusa_num_heads"] = 2
    wanted = reference(medusa(num_layers=1, bias=True), target)
    assert draft(heads, tmp_path, target) == wanted


@pytest.mark.parametrize("output", ["each", "shared"])
@pytest.mark.parametrize("whole", [False, True], ids=["cut matrices", "whole matrices"])
def test_a_token_map_gives_the_token_of_each_output_row(
    tmp_path: Path, output: str, whole: bool
) -> None:
    target, heads = RandomTarget(), medusa(output=output, token_map=40)
    if whole:
        outputs = medusa(output=output, seed=3).tensors
        heads = with_tensors(heads, {n: t for n, t in outputs.items() if "lm_head" in n})
    drafts = draft(heads, tmp_path, target)
    assert drafts == reference(heads, target)
    assert {token for row in drafts for token in row} <= set(heads.tensors["token_map"].tolist())


@pytest.mark.parametrize("token_map", [None, 40], ids=["every token", "a token map"])
@pytest.mark.parametrize("output", ["each", "shared"])
def test_the_tokens_that_the_sampler_draws_are_drafted(
    tmp_path: Path, output: str, token_map: int | None
) -> None:
    target, sampler = RandomTarget(), SecondBest()
    heads = medusa(output=output, token_map=token_map)
    given = replace(batch(ROWS, k=KS, hidden_of=target.hidden_of), sampling=sampler)
    drafts = load(heads, tmp_path, target).propose(given)
    assert drafts.tokens == reference(heads, target, rank=1)
    assert drafts.probabilities is not None
    for tokens, q in zip(drafts.tokens, drafts.probabilities, strict=True):
        assert q.shape == (len(tokens), VOCABULARY)
        assert ((q > 0).sum(-1) == (token_map or VOCABULARY)).all()
        assert q.topk(2).indices[:, 1].tolist() == tokens
    assert sampler.calls == [(depth, [0, 1, 2, 3]) for depth in range(4)]
    greedy = replace(given, sampling=SecondBest(samples=False))
    plain = load(heads, tmp_path, target).propose(greedy)
    assert (plain.tokens, plain.probabilities) == (drafts.tokens, None)


def test_a_shared_matrix_may_be_stored_as_the_first_heads(tmp_path: Path) -> None:
    target, heads = RandomTarget(), medusa(output="shared")
    matrix = heads.tensors["lm_head.weight"]
    as_first = with_tensors(heads, {"lm_head.weight": None, "lm_heads.0.weight": matrix})
    assert draft(as_first, tmp_path, target) == reference(heads, target)


def test_drafts_are_limited_to_the_number_of_heads(tmp_path: Path) -> None:
    target = RandomTarget()
    proposer = load(medusa(num_heads=3), tmp_path, target)
    given = batch(ROWS, k=[9, 2, 3, 9], hidden_of=target.hidden_of)
    assert [len(row) for row in proposer.propose(given).tokens] == [3, 2, 3, 3]


def test_weights_have_the_targets_dtype_and_are_counted(tmp_path: Path) -> None:
    heads = medusa(bias=True)
    total = sum(tensor.numel() for tensor in heads.tensors.values())
    narrow = RandomTarget(dtype=torch.bfloat16)
    assert load(heads, tmp_path, RandomTarget()).weights_bytes == 4 * total
    proposer = load(heads, tmp_path, narrow)
    assert proposer.weights_bytes == 2 * total
    drafts = proposer.propose(batch(ROWS, k=2, hidden_of=narrow.hidden_of))
    assert [len(row) for row in drafts.tokens] == [2, 2, 2, 2]


def test_the_targets_output_layer_is_not_counted(tmp_path: Path) -> None:
    heads = medusa(output="target")
    blocks = sum(tensor.nbytes for tensor in heads.tensors.values())
    assert load(heads, tmp_path, RandomTarget()).weights_bytes == blocks


REFUSED: list[tuple[Callable[[], Heads], dict[str, Any], str, tuple[str, ...]]] = [
    (medusa, {"architectures": ["LlamaForCausalLM"]}, "architectures", ("MedusaModel", "Llama")),
    (medusa, {"architectures": None, "model_type": "llama"}, "model_type", ("medusa", "llama")),
    (medusa, {"hidden_size": 32}, "hidden_size", ("16", "32", "hidden size")),
    (medusa, {"vocab_size": 95}, "vocab_size", ("96", "95", "vocabulary")),
    (medusa, {"num_heads": None}, "medusa_num_heads or num_heads", ("missing",)),
    (medusa, {"num_heads": 0}, "num_heads", ("at least 1", "0")),
    (medusa, {"num_hidden_layers": 0.5}, "num_hidden_layers", ("integer", "0.5")),
    (medusa, {"truncated_vocab_size": 97}, "truncated_vocab_size", ("at most 96", "97")),
    (medusa, {"original_lm_head": "no"}, "original_lm_head", ("true or false", "no")),
    (fasterdecoding_medusa, {"medusa_num_heads": "4"}, "medusa_num_heads", ("integer", "'4'")),
    (fasterdecoding_medusa, {"medusa_num_layers": None}, "medusa_num_layers", ("missing",)),
]
"""A layout, changed fields, the field in the error, and other words in it."""


@pytest.mark.parametrize(
    ("make", "changes", "named", "words"),
    REFUSED,
    ids=lambda value: getattr(value, "__name__", str(value))[:40],
)
def test_an_unfit_configuration_is_refused(
    tmp_path: Path,
    make: Callable[[], Heads],
    changes: dict[str, Any],
    named: str,
    words: tuple[str, ...],
) -> None:
    heads = make()
    heads.config |= changes
    with pytest.raises(ValueError, match=rf"config\.json: {named} ") as caught:
        load(heads, tmp_path, RandomTarget())
    assert str(tmp_path) in str(caught.value)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("heads", "missing"),
    [
        (medusa(), "blocks.0.layers.0.weight"),
        (medusa(), "blocks.3.layers.1.weight"),
        (medusa(bias=True), "blocks.2.layers.0.bias"),
        (medusa(), "lm_heads.2.weight"),
        (medusa(token_map=40), "token_map"),
        (fasterdecoding_medusa(), "1.0.linear.weight"),
        (fasterdecoding_medusa(), "3.0.linear.bias"),
        (fasterdecoding_medusa(), "0.1.weight"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_missing_tensor_is_named_with_its_file(
    tmp_path: Path, heads: Heads, missing: str
) -> None:
    with pytest.raises(ValueError, match=rf"{heads.file}: tensor {missing} .*is missing"):
        load(with_tensors(heads, {missing: None}), tmp_path, RandomTarget())


@pytest.mark.parametrize(
    ("heads", "name"),
    [
        (medusa(), "blocks.1.layers.0.weight"),
        (medusa(bias=True), "blocks.1.layers.1.bias"),
        (medusa(), "lm_heads.3.weight"),
        (medusa(output="shared"), "lm_head.weight"),
        (medusa(token_map=40), "token_map"),
        (fasterdecoding_medusa(), "2.0.linear.weight"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_shape_is_named_with_the_expected_one(
    tmp_path: Path, heads: Heads, name: str
) -> None:
    cut = heads.tensors[name][1:].clone()
    with pytest.raises(ValueError, match=rf"{heads.file}: tensor {name} must have shape") as caught:
        load(with_tensors(heads, {name: cut}), tmp_path, RandomTarget())
    assert str(list(cut.shape)) in str(caught.value)
    assert str(list(heads.tensors[name].shape)) in str(caught.value)


@pytest.mark.parametrize("name", ["lm_heads.4.weight", "blocks.0.layers.2.weight", "norm.weight"])
def test_an_unexpected_tensor_is_named(tmp_path: Path, name: str) -> None:
    heads = with_tensors(medusa(), {name: torch.zeros(16, 16)})
    with pytest.raises(ValueError, match=rf"model\.safetensors: tensor {name} is not expected"):
        load(heads, tmp_path, RandomTarget())


@pytest.mark.parametrize("token", [-1, 96])
def test_a_token_map_with_an_id_outside_the_vocabulary_is_refused(
    tmp_path: Path, token: int
) -> None:
    heads = medusa(token_map=40)
    heads.tensors["token_map"][7] = token
    with pytest.raises(ValueError, match=r"model\.safetensors: token_map must hold tokens in \[0"):
        load(heads, tmp_path, RandomTarget())


def test_a_k_above_the_number_of_heads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"num_speculative_tokens must be at most 4.*it is 5"):
        load(medusa(num_heads=4), tmp_path, RandomTarget(), k=5)
