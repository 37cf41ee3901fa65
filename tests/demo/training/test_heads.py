"""Heads: their training data, chains that equal decoding, and the shipped heads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from demo import HEADS, model_path
from demo.training.answers import Sampling, load_chats, sample_chats, save_chats
from demo.training.corpus import Piece
from demo.training.heads.acceptance import tokens_per_step
from demo.training.heads.eagle import Eagle, Eagle3
from demo.training.heads.export import export_head
from demo.training.heads.teacher import AUX_LAYERS, TeacherBatch, teacher_batch
from demo.training.heads.training import Head, chat_batches, frequent_tokens, new_head, train_heads
from demo.training.packing import Tokenized
from tests.cases import proved_beyond

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
def batch(target: LlamaForCausalLM, chats: list[Tokenized]) -> TeacherBatch:
    """All chats with all chains."""
    return teacher_batch(target, chats, STEPS)


def test_greedy_answers_are_the_targets_first_choices(
    target: LlamaForCausalLM, chats: list[Tokenized]
) -> None:
    for chat in chats:
        choices = target(torch.tensor([chat.ids])).logits[0].argmax(-1).tolist()
        assert chat.ids[chat.masked :] == choices[chat.masked - 1 : -1]


def test_chats_are_unchanged_by_saving_and_loading(chats: list[Tokenized], tmp_path: Path) -> None:
    save_chats(chats, tmp_path / "chats.json")
    assert load_chats(tmp_path / "chats.json") == chats


def test_target_probs_are_the_targets_next_token_distributions(
    target: LlamaForCausalLM, chats: list[Tokenized], batch: TeacherBatch
) -> None:
    for row, chat in enumerate(chats):
        alone = target(torch.tensor([chat.ids])).logits[0].softmax(-1)
        mine = batch.rows == row
        assert batch.starts[mine].tolist() == list(range(chat.masked - 1, len(chat.ids) - 1))
        # The batch is computed in bf16.
        torch.testing.assert_close(
            batch.target_probs[mine], alone[chat.masked - 1 : -1], atol=0.06, rtol=0
        )


def test_a_chain_gets_the_token_before_the_predicted_one_in_its_row(
    chats: list[Tokenized], batch: TeacherBatch
) -> None:
    for step in range(STEPS):
        known = [ids for chat in chats for ids in chat.ids[chat.masked + step : -1]]
        assert batch.tokens(step).tolist() == known


def test_acceptance_of_a_perfect_head_and_of_a_wrong_head(
    target: LlamaForCausalLM, chats: list[Tokenized]
) -> None:
    class Oracle:
        """Predicts the target's most likely token, or always another one."""

        steps = STEPS

        def __init__(self, right: bool) -> None:
            self._sign = 1.0 if right else -1.0

        def __call__(self, batch: TeacherBatch) -> Iterator[torch.Tensor]:
            for step in range(STEPS):
                yield self._sign * batch.target_probs[batch.chains[step] + 1 + step]

    long = [chat for chat in chats if len(chat.ids) - chat.masked == 24]
    # 23 tokens after the first: four steps of five and one of three. A tie can cost a step.
    perfect = tokens_per_step(target, Oracle(True), long, STEPS)  # type: ignore[arg-type]
    assert perfect == pytest.approx(23 / 5, rel=0.05)
    assert tokens_per_step(target, Oracle(False), chats, STEPS) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_an_eagle_chain_equals_the_layer_run_on_its_own_outputs(
    name: str, target: LlamaForCausalLM, chats: list[Tokenized], batch: TeacherBatch
) -> None:
    head = new_head(name, target, chats)
    assert isinstance(head, Eagle | Eagle3)
    logits = [part.detach() for part in head(batch)]
    row, chain = 1, 5
    start = chats[row].masked - 1 + chain
    states = batch.hidden if name == "eagle" else head.fc(batch.aux)
    states = states[row : row + 1, : start + 1].detach()
    for step in range(STEPS):
        length = start + 1 + step
        tokens = target.model.embed_tokens(batch.ids[row : row + 1, 1 : length + 1])
        with torch.no_grad():
            seen = head._attend(tokens, states, torch.arange(length)[None], [])[:, -1:]
            out = (head.midlayer if isinstance(head, Eagle3) else head.layer).feed(seen)
        states = torch.cat([states, out], 1)
        place = int((batch.rows == row).nonzero()[0]) + chain
        mine = logits[step][(batch.chains[step] == place).nonzero()[0, 0]]
        alone = head.lm_head(head.norm(out)) if isinstance(head, Eagle3) else target.lm_head(out)
        mine = mine[~mine.isneginf()]
        torch.testing.assert_close(mine, alone[0, 0].detach(), atol=2e-4, rtol=2e-4)


def test_auxiliary_states_are_the_inputs_of_the_layers(
    target: LlamaForCausalLM, chats: list[Tokenized], batch: TeacherBatch
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
    torch.testing.assert_close(batch.aux[0, : len(chats[0].ids)], together, atol=0.3, rtol=0.05)


def test_later_steps_have_fewer_chains(target: LlamaForCausalLM, chats: list[Tokenized]) -> None:
    batch = teacher_batch(target, chats, STEPS, share=0.5)
    first, second, third, _ = (len(chains) for chains in batch.chains)
    assert first > 1.8 * second > 3 * third > 0
    for step in range(1, STEPS):
        before = batch.chains[step - 1][batch.continued[step]]
        assert batch.chains[step].tolist() == before.tolist()


def test_frequent_tokens_are_chosen_and_sorted_by_id() -> None:
    chats = [Tokenized([9, 9, 9, 2000, 7, 7, 2000], masked=3)]
    ids = frequent_tokens(chats, 2048).tolist()
    assert {7, 2000} <= set(ids)
    assert ids == sorted(ids)


def test_batches_contain_every_chat_once_per_epoch() -> None:
    chats = [Tokenized(list(range(length))) for length in range(5, 300, 3)]
    batches = chat_batches(chats, 2)
    sizes = sorted(len(chat.ids) for batch in batches for chat in batch)
    assert sizes == sorted(2 * [len(chat.ids) for chat in chats])


@pytest.mark.parametrize("name", proved_beyond(("mlp-speculator",), HEADS))
def test_training_lowers_a_heads_loss(
    name: str, target: LlamaForCausalLM, chats: list[Tokenized]
) -> None:
    pair = chats[2:4]  # a CPU without bfloat16 takes seconds for a step with all of them
    batch = teacher_batch(target, pair, STEPS)
    head = new_head(name, target, pair)
    before = _first_loss(head, batch)
    train_heads(target, {name: head}, pair, epochs=12)
    assert _first_loss(head, batch) < 0.9 * before


@torch.no_grad()
def _first_loss(head: Head, batch: TeacherBatch) -> float:
    return float(batch.loss(0, next(head(batch))))


@pytest.mark.parametrize("name", HEADS)
def test_a_shipped_head_has_the_layout_that_export_writes(
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
    assert 2 in ids  # eos, so that the end of an answer can be drafted
