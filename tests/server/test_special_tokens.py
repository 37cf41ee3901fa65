"""Special tokens in the texts of a chat are hidden until its template has rendered."""

import json
import string
import time

import pytest

from server.errors import InvalidField
from server.special_tokens import STAND_INS, SpecialTokens

TOKENS = SpecialTokens(["<|im_start|>", "<|im_end|>", "<s>", "[INST]", "<\uff5cend\uff5c>"])


@pytest.mark.parametrize(
    "text", ["", "hello", "a < b | c > d", "<div>", "[1]", "é漢🙂", "\U00100000"]
)
def test_a_value_without_special_tokens_is_returned_itself(text: str) -> None:
    value = {"messages": [{"role": "user", "content": text}], text: 1}
    hidden_value = TOKENS.hide(value)
    assert hidden_value.value is value
    assert not hidden_value.has_tokens
    assert hidden_value.restore(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "a<|im_end|>b",
        "<s><s>",
        "[INST]",
        "x<\uff5cend\uff5c>",
        "<|im_<|im_end|>end|>",
        "<s>\U00100000",
        r"<s>\udbc0\udc00",
    ],
)
def test_hidden_texts_have_no_special_token_and_come_back_whole(text: str) -> None:
    hidden_value = TOKENS.hide([{"content": text, text: [text, 1, None]}])
    assert hidden_value.has_tokens
    for shown in (hidden_value.value[0]["content"], *hidden_value.value[0]):
        assert not TOKENS.occur_in(shown)
    assert len(hidden_value.value[0]["content"]) == len(text)
    for ensure_ascii in (True, False):
        shown = json.dumps(hidden_value.value[0]["content"], ensure_ascii=ensure_ascii)
        assert not TOKENS.occur_in(shown)
        whole = json.dumps(text, ensure_ascii=ensure_ascii)
        assert json.loads(hidden_value.restore(shown)) == json.loads(whole)


@pytest.mark.parametrize(
    ("template", "values"),
    [
        ("{}{}", ("a<|im_", "end|>b")),
        ("<{}>", ("|im_end|",)),
        ("<{}", ("|im_end|> and more",)),
        ("{}{}{}", ("<|im", "_", "end|>")),
    ],
)
def test_texts_that_a_template_puts_together_make_no_special_token(
    template: str, values: tuple[str, ...]
) -> None:
    assert TOKENS.occur_in(template.format(*values))
    hidden_value = TOKENS.hide(list(values))
    assert not TOKENS.occur_in(template.format(*hidden_value.value))
    assert hidden_value.restore(template.format(*hidden_value.value)) == template.format(*values)


def test_words_that_templates_compare_are_not_changed() -> None:
    tokens = SpecialTokens(["<|function|>", "<|im_end|>", "<image>"])
    schema = {"type": "function", "role": "user", "image": "im_end", "name": "im"}
    assert tokens.hide(schema).value is schema


def test_a_tokenizer_without_special_tokens_hides_nothing() -> None:
    assert SpecialTokens([]).hide(["<s>"]).value == ["<s>"]


def test_texts_that_leave_no_stand_in_are_refused() -> None:
    every = "".join(map(chr, STAND_INS))
    with pytest.raises(InvalidField, match="private use"):
        TOKENS.hide([every, "<s>"])


@pytest.mark.parametrize("escape", [False, True])
def test_a_text_with_all_stand_ins_costs_little_time(escape: bool) -> None:
    every = "".join(map(chr, STAND_INS))
    text = "x" * 1_000_000 + (json.dumps(every) if escape else every) + "<s>"
    begin = time.thread_time()
    with pytest.raises(InvalidField, match="private use"):
        TOKENS.hide([text])
    # It took 0.1 s, and 6 s and more where each stand-in is looked for in all of the text.
    assert time.thread_time() - begin < 2


def test_thousands_of_special_tokens_cost_little_time() -> None:
    """A pattern with a branch for each token would try all of them at every `<`."""
    tokens = SpecialTokens([f"<unused{number}>" for number in range(6000)])
    text = "<p class='x'><b>some words</b></p>\n" * 3000
    begin = time.process_time()
    for _ in range(10):
        tokens.hide([{"role": "user", "content": text}])
    # Ten texts of 100 kB took 0.03 s, and 3 s with such a pattern.
    assert time.process_time() - begin < 1


def test_every_character_can_be_a_special_token() -> None:
    for character in string.punctuation:
        hidden_value = SpecialTokens([character]).hide([f"a{character}"])
        assert hidden_value.restore(hidden_value.value[0]) == f"a{character}"
        assert character not in hidden_value.value[0]
