"""The shipped prompts: forty of each kind, from the held-out split."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerFast

from demo.corpus import is_held_out
from demo.prompts import load_prompts, save_prompts
from demo.tokenizer import encode, render_chat


def test_forty_prompts_of_each_kind() -> None:
    kinds = [prompt.kind for prompt in load_prompts()]
    assert kinds == ["quote"] * 40 + ["free"] * 40


def test_no_prompt_is_from_the_training_split() -> None:
    assert all(is_held_out(prompt.group) for prompt in load_prompts())


def test_only_quoting_prompts_contain_their_answer() -> None:
    for prompt in load_prompts():
        shown = prompt.messages[-1]["content"]
        body = prompt.reference.split(":\n\n", 1)[-1]
        assert (body in shown or prompt.reference in shown) == (prompt.kind == "quote")
        assert prompt.messages[-1]["role"] == "user"


def test_prompts_are_short_enough_for_an_answer(tokenizer: PreTrainedTokenizerFast) -> None:
    for prompt in load_prompts():
        text = render_chat(tokenizer, prompt.messages, answer_next=True)
        assert len(encode(tokenizer, text)) < 640


def test_prompts_are_unchanged_by_saving_and_loading(tmp_path: Path) -> None:
    prompts = load_prompts()[:3]
    save_prompts(prompts, tmp_path / "prompts.json")
    assert load_prompts(tmp_path / "prompts.json") == prompts
