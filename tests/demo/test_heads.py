"""Heads: what they are trained on, that chains are what decoding does, and the shipped ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from demo import HEADS, model_path
from demo.answers import Sampling, load_chats, sample_chats, save_chats
from demo.corpus import Piece
from demo.heads.acceptance import tokens_per_step
from demo.heads.eagle import Eagle, Eagle3
from demo.heads.export import export_head
from demo.heads.lesson import AUX_LAYERS, Lesson, new_lesson
from demo.heads.training import Head, frequent_tokens, lesson_batches, new_head, train_heads
from demo.packing import Tokenized

STEPS = 4


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    """The shipped target in fp32."""
    model = LlamaForCausalLM.from_pretrained(model_path("target"), dtype=torch.float32)
    model.train(False).requires_grad_(False)
    return model


@pytest.fixture(scope="module")
def chats(
    target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, pieces: list[Piece]
) -> list[Tokenized]:
    """Greedy and sampled answers to eight prompts."""
    sampling = Sampling("test", quote_every=4, temperatures=(0.0,), max_tokens=24)
    return sample_chats(target, tokenizer, pieces, 8, sampling)


@pytest.fixture(scope="module")
def lesson(target: LlamaForCausalLM, chats: list[Tokenized]) -> Lesson:
    """All chains of all chats."""
    return new_lesson(target, chats, STEPS)


def test_greedy_answers_are_the_targets_first_choices(
    target: LlamaForCausalLM, chats: list[Tokenized]
) -> None:
    for chat in chats:
        choices = target(torch.tensor([chat.ids])).logits[0].argmax(-1).tolist()
        assert chat.ids[chat.masked :] == choices[chat.masked - 1 : -1]


def test_chats_survive_being_saved(chats: list[Tokenized], tmp_path: Path) -> None:
    save_chats(chats, tmp_path / "chats.json")
    assert load_chats(tmp_path / "chats.json") == chats


def test_goals_are_the_targets_probabilities_of_the_token_that_follows(
    target: LlamaForCausalLM, chats: list[Tokenized], lesson: Lesson
) -> None:
    for row, chat in enumerate(chats):
        alone = target(torch.tensor([chat.ids])).logits[0].softmax(-1)
        mine = lesson.rows == row
        assert lesson.starts[mine].tolist() == list(range(chat.masked - 1, len(chat.ids) - 1))
        # The lesson is computed in bf16.
        torch.testing.assert_close(
            lesson.goals[mine], alone[chat.masked - 1 : -1], atol=0.06, rtol=0
        )


def test_a_chain_knows_the_token_before_the_one_it_guesses_and_stays_in_its_row(
    chats: list[Tokenized], lesson: Lesson
) -> None:
    for step in range(STEPS):
        known = [ids for chat in chats for ids in chat.ids[chat.masked + step : -1]]
        assert lesson.tokens(step).tolist() == known


def test_a_perfect_head_is_counted_as_such_and_a_wrong_one_too(
    target: LlamaForCausalLM, chats: list[Tokenized]
) -> None:
    class Oracle:
        """Guesses what the target chooses, or never."""

        steps = STEPS

        def __init__(self, right: bool) -> None:
            self._sign = 1.0 if right else -1.0

        def __call__(self, lesson: Lesson) -> Iterator[torch.Tensor]:
            for step in range(STEPS):
                yield self._sign * lesson.goals[lesson.chains[step] + 1 + step]

    long = [chat for chat in chats if len(chat.ids) - chat.masked == 24]
    # 23 tokens after the first: four steps of five and one of three.
    assert tokens_per_step(target, Oracle(True), long, STEPS) == 23 / 5  # type: ignore[arg-type]
    assert tokens_per_step(target, Oracle(False), chats, STEPS) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_an_eagle_chain_equals_running_the_layer_on_its_own_outputs(
    name: str, target: LlamaForCausalLM, chats: list[Tokenized], lesson: Lesson
) -> None:
    head = new_head(name, target, chats)
    assert isinstance(head, Eagle | Eagle3)
    logits = [part.detach() for part in head(lesson)]
    row, chain = 1, 5
    start = chats[row].masked - 1 + chain
    states = lesson.hidden if name == "eagle" else head.fc(lesson.aux)
    states = states[row : row + 1, : start + 1].detach()
    for step in range(STEPS):
        length = start + 1 + step
        tokens = target.model.embed_tokens(lesson.ids[row : row + 1, 1 : length + 1])
        with torch.no_grad():
            seen = head._attend(tokens, states, torch.arange(length)[None], [])[:, -1:]
            out = (head.midlayer if isinstance(head, Eagle3) else head.layer).feed(seen)
        states = torch.cat([states, out], 1)
        place = int((lesson.rows == row).nonzero()[0]) + chain
        mine = logits[step][(lesson.chains[step] == place).nonzero()[0, 0]]
        alone = head.lm_head(head.norm(out)) if isinstance(head, Eagle3) else target.lm_head(out)
        mine = mine[~mine.isneginf()]
        torch.testing.assert_close(mine, alone[0, 0].detach(), atol=2e-4, rtol=2e-4)


def test_auxiliary_states_are_what_goes_into_the_layers(
    target: LlamaForCausalLM, chats: list[Tokenized], lesson: Lesson
) -> None:
    seen: list[torch.Tensor] = []
    layers = [target.model.layers[layer] for layer in AUX_LAYERS]
    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        for layer in layers
    ]
    target(torch.tensor([chats[0].ids]))
    for hook in hooks:
        hook.remove()
    together = torch.cat(seen, -1)[0]
    torch.testing.assert_close(lesson.aux[0, : len(chats[0].ids)], together, atol=0.3, rtol=0.05)


def test_fewer_chains_make_later_steps(target: LlamaForCausalLM, chats: list[Tokenized]) -> None:
    lesson = new_lesson(target, chats, STEPS, share=0.5)
    first, second, third, _ = (len(chains) for chains in lesson.chains)
    assert first > 1.8 * second > 3 * third > 0
    for step in range(1, STEPS):
        before = lesson.chains[step - 1][lesson.kept[step]]
        assert lesson.chains[step].tolist() == before.tolist()


def test_frequent_tokens_come_first_and_in_the_order_of_their_ids() -> None:
    chats = [Tokenized([9, 9, 9, 2000, 7, 7, 2000], masked=3)]
    ids = frequent_tokens(chats, 2048).tolist()
    assert {7, 2000} <= set(ids)
    assert ids == sorted(ids)


def test_batches_hold_every_chat_once_per_epoch() -> None:
    chats = [Tokenized(list(range(length))) for length in range(5, 300, 3)]
    batches = lesson_batches(chats, 2)
    sizes = sorted(len(chat.ids) for batch in batches for chat in batch)
    assert sizes == sorted(2 * [len(chat.ids) for chat in chats])


@pytest.mark.parametrize("name", HEADS)
def test_training_makes_a_head_guess_better(
    name: str, target: LlamaForCausalLM, chats: list[Tokenized], lesson: Lesson
) -> None:
    head = new_head(name, target, chats)
    before = _first_loss(head, lesson)
    train_heads(target, {name: head}, chats, epochs=24)
    assert _first_loss(head, lesson) < 0.9 * before


@torch.no_grad()
def _first_loss(head: Head, lesson: Lesson) -> float:
    return float(lesson.loss(0, next(head(lesson))))


@pytest.mark.parametrize("name", HEADS)
def test_a_shipped_head_has_the_layout_that_the_recipe_writes(
    name: str, target: LlamaForCausalLM, chats: list[Tokenized], tmp_path: Path
) -> None:
    export_head(new_head(name, target, chats), tmp_path)
    written, shipped = (load_file(at / "model.safetensors") for at in (tmp_path, model_path(name)))
    assert {k: (v.shape, v.dtype) for k, v in written.items()} == {
        k: (v.shape, v.dtype) for k, v in shipped.items()
    }
    configs = (json.loads((at / "config.json").read_text()) for at in (tmp_path, model_path(name)))
    assert next(configs) == next(configs)


def test_the_draft_vocabulary_maps_into_the_targets() -> None:
    tensors = load_file(model_path("eagle3") / "model.safetensors")
    ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    assert ids.tolist() == tensors["t2d"].nonzero()[:, 0].tolist()
    assert 2 in ids  # eos: an answer's end can be drafted
