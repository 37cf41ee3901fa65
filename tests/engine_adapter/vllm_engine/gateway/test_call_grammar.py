"""The grammar of a parser's calls, as llguidance reads it with the demo's tokenizer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from demo import model_path
from engine_adapter.seam.parsing import NoCallGrammar
from engine_adapter.vllm_engine.gateway.call_grammar import call_begins, call_grammar

ANSWER = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
ARGUMENTS = {**ANSWER, "properties": {"x": {"enum": ["p", "<tool_call>"]}}, "required": ["x"]}
SPECIALS = {"<tool_call>": 2048, "</tool_call>": 2049}
F = '<tool_call>{"name": "f", "arguments": {"x":"p"}}</tool_call>'
G = '<tool_call>\n{"name": "g", "arguments": {"x":"<tool_call>"}}\n</tool_call>'


def tag(name: str, space: str) -> dict[str, Any]:
    return {
        "type": "tag",
        "begin": f'<tool_call>{space}{{"name": "{name}", "arguments": ',
        "content": {"type": "json_schema", "style": "json", "json_schema": ARGUMENTS},
        "end": "}" + space + "</tool_call>",
    }


TAGS = [tag(name, space) for name in "fg" for space in ("", "\n")]
FREE = {"type": "triggered_tags", "triggers": ["<tool_call>", "<absent>"], "tags": TAGS}
CALLS = {"type": "tags_with_separator", "tags": TAGS, "separator": "", "at_least_one": True}
SEVERAL = {**CALLS, "separator": "; "}
SECTION = {
    "type": "sequence",
    "elements": [
        {"type": "const_string", "value": "[["},
        {
            "type": "or",
            "elements": [
                {"type": "regex", "pattern": r"f:\d+/"},
                {"type": "const_string", "value": "g"},
            ],
        },
        {"type": "optional", "content": {"type": "const_string", "value": "?"}},
        {"type": "tag", "begin": "<", "content": CALLS, "end": [">", "]"]},
    ],
}


def tokenizer(*added: str) -> LLTokenizer:
    """The demo's tokenizer with further tokens."""
    made = json.loads((Path(model_path("target")) / "tokenizer.json").read_text())
    last = made["added_tokens"][-1]
    made["added_tokens"] += [
        {**last, "id": 2048 + i, "content": text, "special": False} for i, text in enumerate(added)
    ]
    return LLTokenizer(json.dumps(made))


PLAIN, SPECIAL = tokenizer(), tokenizer(*SPECIALS)


def compact(schema: Any) -> Any:
    return {**schema, "x-guidance": {"whitespace_flexible": False}}


def fits(
    node: Mapping[str, Any], answer: Any, text: str, known: LLTokenizer = PLAIN
) -> tuple[bool, bool]:
    """Whether the grammar accepts the text's tokens, and whether the text may end there."""
    specials = SPECIALS if known is SPECIAL else {}
    grammar = call_grammar(node, answer, specials=specials, json_schema=compact)
    matcher = LLMatcher(known, LLMatcher.grammar_from_lark(grammar))
    tokens = known.tokenize_bytes(text.encode(), parse_special=True)
    accepted = matcher.validate_tokens(tokens) == len(tokens)
    ends = accepted and matcher.consume_tokens(tokens) and matcher.is_accepting()
    assert not matcher.get_error()
    return accepted, ends


@pytest.mark.parametrize("known", [PLAIN, SPECIAL], ids=["text", "tokens"])
@pytest.mark.parametrize(
    ("text", "accepted", "ends"),
    [
        ('{"a":1}', True, True),
        ('{"a": 1}', False, False),
        ('{"a":1}' + F, False, False),
        (F, True, True),
        (F + F, True, True),
        (F + '{"a":1}', False, False),
        ("Well. ", False, False),
        ("<tool_call>", True, False),
        ('<tool_call>{"name": "h"', False, False),
        ('<tool_call>{"name": "f", "arguments": {"x":"q"', False, False),
    ],
)
def test_a_text_is_the_answer_or_calls(
    known: LLTokenizer, text: str, accepted: bool, ends: bool
) -> None:
    assert fits(CALLS, ANSWER, text, known) == (accepted, ends)


@pytest.mark.parametrize(
    ("text", "accepted", "ends"),
    [
        ("", True, True),
        ("Well, 5 < 6.\n", True, True),
        (f"Well. {F} And {F}.", True, True),
        (G + G, True, True),
        ("Well. <tool_call>", True, False),
        ("Well. <tool_call>x", False, False),
        (F + '<tool_call>{"name": "h"', False, False),
    ],
)
def test_calls_within_any_text_are_held(text: str, accepted: bool, ends: bool) -> None:
    assert fits(FREE, None, text) == (accepted, ends)


def test_a_special_token_begins_a_call_and_is_not_text() -> None:
    assert fits(FREE, None, f"Well. {F} And {F}.", SPECIAL) == (True, True)
    assert fits(FREE, None, "Well. <tool_call>x", SPECIAL) == (False, False)
    assert "<[2048]>" in call_grammar(FREE, None, specials=SPECIALS, json_schema=compact)


def test_one_call_ends_the_text() -> None:
    for node, answer in ((CALLS, ANSWER), (FREE, None)):
        one = {**node, "stop_after_first": True}
        assert fits(one, answer, F) == (True, True)
        assert fits(one, answer, F + F) == (False, False)
    assert fits({**FREE, "stop_after_first": True}, None, "No call.") == (True, True)


def test_text_between_calls_has_no_place_beside_an_answer() -> None:
    assert fits(FREE, ANSWER, F) == (True, True)
    for text in (F + F, F + "; " + F, "Well. " + F):
        assert fits(FREE, ANSWER, text) == (False, False)


def test_a_separator_and_the_other_parts() -> None:
    assert fits(SEVERAL, ANSWER, F + "; " + F) == (True, True)
    assert fits(SEVERAL, ANSWER, F + F) == (False, False)
    for text in (f"[[f:12/<{F}>", f"[[g?<{F}{F}]"):
        assert fits(SECTION, ANSWER, text) == (True, True)
    assert fits(SECTION, ANSWER, f"[[g??<{F}>") == (False, False)


@pytest.mark.parametrize(
    ("text", "accepted", "ends"),
    [
        ('{"name":"get"}', True, True),
        ('{"name":"other","parameters":4}', True, True),
        ('{"a":1}', True, True),
        ('{"name": "get", "parameters": {"x":"p"}}', True, True),
        ('{"name": "get", "parameters": {"x":"q"}}', False, False),
        ('{"name": "getter", "parameters": {"x":"p"}}', True, True),
        ('{"name": "other"', False, False),
    ],
)
def test_calls_may_begin_like_the_answer(text: str, accepted: bool, ends: bool) -> None:
    content = {"type": "json_schema", "style": "json", "json_schema": ARGUMENTS}
    begins = [f'{{"name": "{name}", "parameters": ' for name in ("get", "getter")]
    tags = [{"type": "tag", "begin": begin, "content": content, "end": "}"} for begin in begins]
    node = {"type": "triggered_tags", "triggers": ['{"name": '], "tags": tags}
    assert fits(node, {"type": "object"}, text) == (accepted, ends)
    if "get" in text and '": "' in text:
        assert fits(node, None, "Well: " + text) == (accepted, ends)


def test_a_schema_is_written_once() -> None:
    grammar = call_grammar(CALLS, ANSWER, specials={}, json_schema=compact)
    assert grammar.count("%json") == 2


def test_how_calls_begin() -> None:
    begins = [one["begin"] for one in TAGS]
    for node in (CALLS, FREE, {"type": "plus", "content": CALLS}, {"type": "or", "elements": TAGS}):
        assert list(call_begins(node)) == begins
    assert call_begins(SECTION) == ("[[",)


@pytest.mark.parametrize(
    ("node", "part"),
    [
        ({"type": "any_text"}, "any_text"),
        ({"type": "json_schema", "style": "other_xml", "json_schema": ARGUMENTS}, "other_xml"),
        ({**TAGS[0], "begin": {"type": "token", "token": 5}}, "token"),
        ({**TAGS[0], "end": {"type": "token", "token": 5}}, "token"),
    ],
)
def test_a_part_that_a_grammar_lacks_is_named(node: dict[str, Any], part: str) -> None:
    with pytest.raises(NoCallGrammar, match=part):
        call_grammar(node, ANSWER, specials={}, json_schema=compact)
    with pytest.raises(NoCallGrammar):
        call_grammar(CALLS, None, specials={}, json_schema=compact)
    with pytest.raises(NoCallGrammar, match="star"):
        call_begins({"type": "star", "content": CALLS})
