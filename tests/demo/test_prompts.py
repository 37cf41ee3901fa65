"""The shipped prompts: forty of each kind, from the held-out split."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from demo import more_prompts_path
from demo.prompts import KINDS, Prompt, load_prompts
from demo.tokenizer import encode, render_chat
from demo.training.corpus import Piece, is_held_out
from demo.training.prompt_building import build_more_prompts, save_prompts


def test_forty_prompts_of_each_kind() -> None:
    kinds = [prompt.kind for prompt in load_prompts()]
    assert kinds == ["quote"] * 40 + ["free"] * 40


ALL = [*load_prompts(), *load_prompts(more_prompts_path())]


def test_further_prompts_ask_for_other_pieces() -> None:
    more = load_prompts(more_prompts_path())
    assert Counter(prompt.kind for prompt in more) == {"quote": 160, "free": 147}
    assert len({prompt.id for prompt in ALL}) == len(ALL)
    for kind in KINDS:
        answers = [prompt.reference for prompt in ALL if prompt.kind == kind]
        assert len(set(answers)) == len(answers)


def test_further_prompts_are_built_from_fresh_pieces_only(pieces: list[Piece]) -> None:
    fresh = pieces[0]
    measured = [Prompt("quote-00", "quote", p.group, [], f"Lead:\n\n{p.text}") for p in pieces[1:]]
    more = build_more_prompts(pieces, measured, seed=1)
    assert more
    assert {prompt.group for prompt in more} == {fresh.group}
    assert all(prompt.id.endswith("-40") for prompt in more)
    assert more == build_more_prompts(pieces, measured, seed=1)


def test_no_prompt_is_from_the_training_split() -> None:
    assert all(is_held_out(prompt.group) for prompt in ALL)


def test_only_quoting_prompts_contain_their_answer() -> None:
    for prompt in ALL:
        shown = prompt.messages[-1]["content"]
        body = prompt.reference.split(":\n\n", 1)[-1]
        assert (body in shown or prompt.reference in shown) == (prompt.kind == "quote")
        assert prompt.messages[-1]["role"] == "user"


def test_prompts_are_short_enough_for_an_answer(tokenizer: PreTrainedTokenizerFast) -> None:
    for prompt in ALL:
        text = render_chat(tokenizer, prompt.messages, answer_next=True)
        assert len(encode(tokenizer, text)) < 640


def test_prompts_are_unchanged_by_saving_and_loading(tmp_path: Path) -> None:
    prompts = load_prompts()[:3]
    save_prompts(prompts, tmp_path / "prompts.json")
    assert load_prompts(tmp_path / "prompts.json") == prompts
