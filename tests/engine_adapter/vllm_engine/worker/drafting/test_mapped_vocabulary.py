"""A draft model with another vocabulary drafts as its model does, in the target's tokens."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from demo import model_path
from engine_adapter.proposers.methods import parse_spec
from engine_adapter.proposers.vocabulary_map import NO_TOKEN, VocabularyMap
from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.cases import proved_beyond
from tests.engine_adapter.vllm_engine.support.paged_cases import kinds_of_worlds

pytestmark = pytest.mark.needs_vllm

VOCAB = 29
TWIN, STRANGER = SpecMethod("twin", 4), SpecMethod("stranger", 3)
IMPOSSIBLE = float("-inf")


@pytest.fixture
def module() -> Any:
    return import_module("engine_adapter.vllm_engine.worker.drafting.mapped_vocabulary")


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Creates a world."""
    paged = import_module("tests.engine_adapter.vllm_engine.support.paged_world")
    return lambda **how: paged.World(monkeypatch, **how)


def permuted(seed: int) -> VocabularyMap:
    """Every token has another id."""
    order = np.random.default_rng(seed).permutation(VOCAB)
    return VocabularyMap(order, order, VOCAB, VOCAB)


def partial(seed: int) -> VocabularyMap:
    """The same, but a third of the tokens is missing; they are read as token 5."""
    whole, missing = permuted(seed), np.arange(VOCAB) % 3 == 1
    return VocabularyMap(
        np.where(missing, 5, whole.inputs), np.where(missing, NO_TOKEN, whole.outputs), VOCAB, VOCAB
    )


# -- tensors ---------------------------------------------------------------------------------


def test_logits_move_to_the_targets_tokens_and_the_others_are_impossible(module: Any) -> None:
    mapped = VocabularyMap(np.array([2, 2, 0, 1]), np.array([2, NO_TOKEN, 0, NO_TOKEN]), 4, 3)
    vocabulary = module.MappedVocabulary(mapped, 3, torch.device("cpu"))
    logits = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    want = [[3.0, IMPOSSIBLE, 1.0, IMPOSSIBLE], [6.0, IMPOSSIBLE, 4.0, IMPOSSIBLE]]
    assert vocabulary.logits(logits).tolist() == want
    padded = torch.nn.functional.pad(logits, (0, 5), value=99.0)
    assert vocabulary.logits(padded).tolist() == want, "padding of the output layer is not a token"
    assert vocabulary.logits(logits.bfloat16()).dtype == torch.bfloat16
    assert vocabulary.inputs(torch.tensor([0, 1, 2, 3], dtype=torch.int32)).tolist() == [2, 2, 0, 1]


@pytest.mark.parametrize("on", [True, False])
def test_only_the_option_maps(module: Any, on: bool) -> None:
    target = str(model_path("target"))
    spec = parse_spec(
        {"name": "d", "method": "draft_model", "model": target, "use_heterogeneous_vocab": on}
    )
    config = SimpleNamespace(
        tokenizer=target,
        tokenizer_revision=None,
        model=target,
        revision=None,
        trust_remote_code=False,
        get_vocab_size=lambda: 2048,
    )
    vocabulary = module.map_draft_vocabulary(spec, config, config, torch.device("cpu"))
    if not on:
        assert isinstance(vocabulary, module.SameVocabulary)
        return
    logits = torch.rand(3, 2048)
    mapped = vocabulary.logits(logits)
    (missing,) = torch.nonzero(mapped[0] == IMPOSSIBLE)[:, 0].tolist()
    assert missing == 1, "the beginning of a text is never drafted"
    logits[:, missing] = IMPOSSIBLE
    assert torch.equal(mapped, logits)


# -- drafting --------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "pressure"), kinds_of_worlds({"twin": 50, "stranger": 96}))
@pytest.mark.parametrize("make_map", proved_beyond([partial], [permuted, partial]))
def test_switches_preemption_chunks_and_prefix_hits_do_not_change_drafts(
    make: Any, make_map: Callable[[int], VocabularyMap], how: dict[str, Any], pressure: bool
) -> None:
    """Every step checks each draft, and what the model reads, against a run without switches."""
    vocabularies = {"twin": make_map(1), "stranger": make_map(2)}
    world = make(**how, vocabularies=vocabularies)
    counts = world.run_random([TWIN, STRANGER, SpecMethod("ngram", 4), PLAIN], 100)
    assert counts["drafted"] > 200
    assert counts["caught up"] > 300
    assert counts["hits"] > 100
    assert counts["preempted"] > 5 or not pressure


@pytest.mark.parametrize("part", ["inputs", "outputs"])
def test_control_a_map_that_is_off_by_one_changes_the_drafts(make: Any, part: str) -> None:
    whole = permuted(1)
    moved: dict[str, Any] = {part: np.roll(getattr(whole, part), 1)}
    shifted = replace(whole, **moved)
    world = make(vocabularies={"twin": shifted})
    world.vocabularies = {"twin": whole}
    world.add("r", [3, 4, 5, 6, 7, 8], TWIN)
    with pytest.raises(AssertionError):
        world.step()


def test_what_does_not_map_is_never_drafted(make: Any) -> None:
    vocabulary = partial(1)
    world = make(vocabularies={"twin": vocabulary})
    world.add("r", [3, 4, 5, 6, 7, 8], TWIN)
    drafted = set()
    while len(world.requests["r"].tokens) < 80:
        drafted |= set(world.step().drafts["r"])
    assert len(drafted) > 5
    assert all(vocabulary.outputs[token] != NO_TOKEN for token in drafted)


@pytest.mark.parametrize("width", [3, 4, 6])
def test_logits_of_a_model_with_the_same_tokens_have_the_targets_width(
    width: int, module: Any
) -> None:
    vocabulary, logits = module.SameVocabulary(4), torch.rand(2, width)
    of_target = vocabulary.logits(logits)
    assert torch.equal(of_target[:, :width], logits[:, :4])
    assert of_target.shape == (2, 4)
    assert (of_target[:, width:] == IMPOSSIBLE).all()
    assert vocabulary.inputs(logits) is logits
