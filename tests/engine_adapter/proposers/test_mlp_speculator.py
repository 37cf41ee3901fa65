"""The MLP speculator against its source's formulas, for every published checkpoint form."""

import math
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
    mlp_speculator,
)

ROWS = {"a": [1, 2, 3, 4], "b": [5, 5], "c": list(range(60)), "d": [90, 3, 90, 3, 90]}


class Host:
    def __init__(self, target: RandomTarget) -> None:
        self.target = target


def load(heads: Heads, folder: Path, target: RandomTarget, k: int = 1) -> Proposer:
    fields = {"name": "mlp_speculator", "model": heads.write(folder), "num_speculative_tokens": k}
    return get_method("mlp_speculator").create(parse_spec(fields), Host(target))  # type: ignore[arg-type]


def reference(heads: Heads, hidden: torch.Tensor, newest: int, k: int, rank: int = 0) -> list[int]:
    """The drafts of one row, step by step in float64, as in arXiv 2404.19124 and its code.

    Each token is the one of this `rank`; 0 is the most likely token.
    """
    config = heads.config
    n, inner = config["n_predict"], config["inner_dim"] or config["emb_dim"]

    def weight(part: str, step: int, kind: str = "weight") -> torch.Tensor:
        if config["tie_weights"]:
            step = min(step, 1) if part == "proj" else 0
        return heads.tensors[f"speculator.{part}.{step}.{kind}"].double()

    def norm(x: torch.Tensor) -> torch.Tensor:
        return x / math.sqrt(float((x * x).mean()) + 1e-6)

    state_weight = 0.5 ** (0.5 / n)
    emb_weight = math.sqrt(1 - state_weight**2) * math.sqrt(inner / 2)
    state, token, drafted = hidden.double(), newest, []
    if config["scale_input"]:
        state = norm(state) / math.sqrt(2)
    for step in range(k):
        state = weight("proj", step) @ state * state_weight
        state = state + weight("emb", step)[token] * emb_weight
        state = norm(state) * weight("ln", step) + weight("ln", step, "bias")
        state = state * 0.5 * (1 + torch.erf(state / math.sqrt(2)))
        token = int((weight("head", step) @ state).argsort(descending=True)[rank])
        drafted.append(token)
    return drafted


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("scale_input", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("inner_dim", [0, 24])
@pytest.mark.parametrize("n_predict", [1, 3, 5])
def test_drafts_for_every_k_equal_the_formulas(
    tmp_path: Path, tied: bool, scale_input: bool, inner_dim: int, n_predict: int
) -> None:
    target = RandomTarget()
    heads = mlp_speculator(
        tied=tied, scale_input=scale_input, inner_dim=inner_dim, n_predict=n_predict
    )
    ks = [min(k, n_predict) for k in (3, 1, 5, 2)]
    given = batch(ROWS, k=ks, hidden_of=target.hidden_of, scattered=True)
    drafts = load(heads, tmp_path, target).propose(given)
    for i, (tokens, k) in enumerate(zip(ROWS.values(), ks, strict=True)):
        assert drafts.tokens[i] == reference(heads, given.hidden[i], tokens[-1], k)
    assert drafts.probabilities is None
    assert drafts.catchup_tokens == 0


def test_the_tokens_that_the_sampler_draws_are_fed_to_the_next_step(tmp_path: Path) -> None:
    target, heads, sampler = RandomTarget(), mlp_speculator(), SecondBest()
    ks = [3, 1, 3, 2]
    given = replace(batch(ROWS, k=ks, hidden_of=target.hidden_of), sampling=sampler)
    drafts = load(heads, tmp_path, target).propose(given)
    assert drafts.probabilities is not None
    for i, (tokens, k) in enumerate(zip(ROWS.values(), ks, strict=True)):
        assert drafts.tokens[i] == reference(heads, given.hidden[i], tokens[-1], k, rank=1)
        q = drafts.probabilities[i]
        assert q.shape == (k, VOCABULARY)
        assert q.topk(2).indices[:, 1].tolist() == drafts.tokens[i]
    assert sampler.calls == [(depth, [0, 1, 2, 3]) for depth in range(3)]
    greedy = replace(given, sampling=SecondBest(samples=False))
    plain = load(heads, tmp_path, target).propose(greedy)
    assert (plain.tokens, plain.probabilities) == (drafts.tokens, None)


def test_no_step_is_computed_after_every_row_has_ended(tmp_path: Path) -> None:
    target, heads, sampler = RandomTarget(), mlp_speculator(), SecondBest(ends=2)
    given = replace(batch(ROWS, k=3, hidden_of=target.hidden_of), sampling=sampler)
    drafts = load(heads, tmp_path, target).propose(given)
    assert [len(row) for row in drafts.tokens] == [2] * len(ROWS)
    assert len(sampler.calls) == 2


def test_drafts_depend_on_the_newest_token(tmp_path: Path) -> None:
    target = RandomTarget()
    rows = {str(token): [1, 2, 3, token] for token in range(20)}
    given = batch(rows, k=3, hidden_of=target.hidden_of)
    drafts = load(mlp_speculator(), tmp_path, target).propose(given)
    assert len({tuple(row) for row in drafts.tokens}) > 5


def test_drafts_are_limited_to_n_predict(tmp_path: Path) -> None:
    target = RandomTarget()
    proposer = load(mlp_speculator(n_predict=3), tmp_path, target)
    given = batch(ROWS, k=[9, 2, 3, 9], hidden_of=target.hidden_of)
    assert [len(row) for row in proposer.propose(given).tokens] == [3, 2, 3, 3]


@pytest.mark.parametrize("stored", ["under another step's name", "for every step"])
def test_tied_tensors_are_found_under_any_stored_name(tmp_path: Path, stored: str) -> None:
    target, heads = RandomTarget(), mlp_speculator(tied=True)
    given = batch(ROWS, k=3, hidden_of=target.hidden_of)
    wanted = load(heads, tmp_path / "once", target).propose(given).tokens
    tensors = {}
    for name, tensor in heads.tensors.items():
        part, step, kind = name.removeprefix("speculator.").split(".")
        steps = range(int(step), 1 if name == "speculator.proj.0.weight" else 3)
        for i in steps if stored == "for every step" else steps[-1:]:
            tensors[f"speculator.{part}.{i}.{kind}"] = tensor.clone()
    assert tensors.keys() != heads.tensors.keys()
    proposer = load(Heads(heads.config, tensors), tmp_path / "otherwise", target)
    assert proposer.propose(given).tokens == wanted
    # A tensor that is stored several times is loaded once.
    assert proposer.weights_bytes == sum(tensor.nbytes for tensor in heads.tensors.values())


def test_weights_have_the_targets_dtype_and_are_counted(tmp_path: Path) -> None:
    heads = mlp_speculator()
    total = sum(tensor.numel() for tensor in heads.tensors.values())
    narrow = RandomTarget(dtype=torch.bfloat16)
    assert load(heads, tmp_path, RandomTarget()).weights_bytes == 4 * total
    proposer = load(heads, tmp_path, narrow)
    assert proposer.weights_bytes == 2 * total
    drafts = proposer.propose(batch(ROWS, k=2, hidden_of=narrow.hidden_of))
    assert [len(row) for row in drafts.tokens] == [2, 2, 2, 2]


REFUSED: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
    ({"architectures": ["LlamaForCausalLM"]}, "architectures", ("MLPSpeculatorPreTrainedModel",)),
    ({"architectures": None, "model_type": "llama"}, "model_type", ("mlp_speculator", "llama")),
    ({"emb_dim": 32}, "emb_dim", ("16", "32", "hidden size")),
    ({"vocab_size": 95}, "vocab_size", ("96", "95", "vocabulary")),
    ({"n_predict": None}, "n_predict", ("missing",)),
    ({"n_predict": 0}, "n_predict", ("at least 1", "0")),
    ({"n_predict": 10**9}, "n_predict", ("at most 1024", "1000000000")),
    ({"n_predict": "3"}, "n_predict", ("integer", "'3'")),
    ({"inner_dim": -1}, "inner_dim", ("at least 0", "-1")),
    ({"tie_weights": "yes"}, "tie_weights", ("true or false", "yes")),
    ({"scale_input": 1}, "scale_input", ("true or false", "1")),
]
"""Changed fields, the field in the error, and other words in it."""


@pytest.mark.parametrize(("changes", "named", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_an_unfit_configuration_is_refused(
    tmp_path: Path, changes: dict[str, Any], named: str, words: tuple[str, ...]
) -> None:
    heads = mlp_speculator()
    heads.config |= changes
    with pytest.raises(ValueError, match=f"config.json: {named} ") as caught:
        load(heads, tmp_path, RandomTarget())
    assert str(tmp_path) in str(caught.value)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("tied", "n_predict", "missing"),
    [
        (False, 3, "speculator.emb.2.weight"),
        (False, 3, "speculator.proj.1.weight"),
        (False, 3, "speculator.ln.0.bias"),
        (False, 3, "speculator.head.1.weight"),
        (True, 3, "speculator.emb.0.weight"),
        (True, 3, "speculator.proj.1.weight"),
        (True, 3, "speculator.proj.0.weight"),
        (True, 3, "speculator.ln.0.weight"),
    ],
)
def test_a_missing_tensor_is_named_with_its_file(
    tmp_path: Path, tied: bool, n_predict: int, missing: str
) -> None:
    heads = mlp_speculator(tied=tied, n_predict=n_predict)
    del heads.tensors[missing]
    with pytest.raises(ValueError, match=rf"model\.safetensors: tensor {missing} .*is missing"):
        load(heads, tmp_path, RandomTarget())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("part", ["emb", "proj", "head", "ln"])
def test_a_wrong_shape_is_named_with_the_expected_one(
    tmp_path: Path, tied: bool, part: str
) -> None:
    heads = mlp_speculator(tied=tied)
    name = f"speculator.{part}.0.weight"
    heads.tensors[name] = heads.tensors[name][..., 1:].contiguous()
    with pytest.raises(ValueError, match=rf"model\.safetensors: tensor {name} must have shape"):
        load(heads, tmp_path, RandomTarget())


def test_a_tensor_of_a_step_beyond_n_predict_is_refused(tmp_path: Path) -> None:
    heads = mlp_speculator(tied=False, n_predict=2)
    heads.tensors["speculator.emb.2.weight"] = heads.tensors["speculator.emb.0.weight"].clone()
    with pytest.raises(ValueError, match=r"speculator\.emb\.2\.weight is not expected"):
        load(heads, tmp_path, RandomTarget())


def test_a_k_above_n_predict_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"num_speculative_tokens must be at most 3.*it is 4"):
        load(mlp_speculator(n_predict=3), tmp_path, RandomTarget(), k=4)
