"""Calls with marked parameters: what a grammar lets through is what vLLM's own parser reads."""

import json
import random
import re
from pathlib import Path
from typing import Any

import jsonschema
import llguidance.numpy as bitmasks
import pytest
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer

from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.parsing import CallConstraint, NoCallGrammar, Parsing, ParsingRequest
from engine_adapter.seam.types import ConstraintKind, Delta, FinishReason, StructuredOutput
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway import parsing as module
from engine_adapter.vllm_engine.gateway.call_grammar import call_begins
from engine_adapter.vllm_engine.gateway.call_parameters import STYLES, ParameterWriter
from engine_adapter.vllm_engine.gateway.call_tags import own_tag
from engine_adapter.vllm_engine.gateway.harmony import TOOL_CALL_PARSER
from engine_adapter.vllm_engine.gateway.parsing import VllmParsers
from tests.cases import proved_beyond
from tests.engine_adapter.vllm_engine.gateway.parser_texts import (
    TARGET,
    ParserKind,
    all_parsers,
    loaded,
    tokenizer_of,
)

pytestmark = pytest.mark.needs_vllm

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "a city"},
        "unit": {"$ref": "#/$defs/unit"},
        "days": {"type": "integer", "minimum": 1, "maximum": 20},
        "loud": {"type": "boolean"},
        "hours": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"unit": {"type": "string", "enum": ["kelvin", "celsius"]}},
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"get_weather": SCHEMA, "now": NOTHING, "anything": {"type": "object"}}
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "description": None, "parameters": schema}}
    for name, schema in SCHEMAS.items()
)
ANSWER = StructuredOutput(ConstraintKind.JSON_SCHEMA, '{"type": "object"}', param="response_format")
WEATHER = {"city": "Bad <b>\n 5", "unit": "kelvin", "days": 3, "loud": True, "hours": [1, 22]}

OTHER_TOKENS = (
    *("｜DSML｜", "[ARGS]", "<|python_start|>", "<|python_end|>"),  # noqa: RUF001
    *("<|tool_call_start|>", "<|tool_call_end|>"),
)
"""Tokens of models beside those that their parsers ask for."""

DSML = (
    '<｜DSML｜{0}parameter name="{{name}}" string="{{is_text}}">{{value}}</｜DSML｜{0}parameter>\n'  # noqa: RUF001
)
DSML_CALL = '<｜DSML｜{0}{1}calls>\n<｜DSML｜{0}invoke name="{{name}}">\n{{body}}</｜DSML｜{0}invoke>\n</｜DSML｜{0}{1}calls>'  # noqa: RUF001, E501
FORMS: dict[str, tuple[str, str, str]] = {
    "qwen3_coder": (
        "<tool_call>\n<function={name}>\n{body}\n</function>\n</tool_call>",
        "<parameter={name}>\n{value}\n</parameter>",
        "\n",
    ),
    "mimo": (
        "<tool_call><function={name}>{body}</function></tool_call>",
        "<parameter={name}>{value}</parameter>",
        "",
    ),
    "glm47": (
        "<tool_call>{name}{body}</tool_call>",
        "<arg_key>{name}</arg_key><arg_value>{value}</arg_value>",
        "",
    ),
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="{name}">\n{body}</invoke>\n</minimax:tool_call>',
        '<parameter name="{name}">{value}</parameter>\n',
        "",
    ),
    "deepseek_v32": (DSML_CALL.format("", "function_"), DSML.format(""), ""),
    "deepseek_v4": (DSML_CALL.format("", "tool_"), DSML.format(""), ""),
    "deepseek_v41": (DSML_CALL.format(" ", ""), DSML.format(" "), ""),
    "seed_oss": (
        "<seed:tool_call>\n<function={name}>\n{body}\n</function>\n</seed:tool_call>",
        "<parameter={name}>{value}</parameter>",
        "\n",
    ),
    "pythonic": ("[{name}({body})]", "{name}={json}", ", "),
    "llama4_pythonic": (
        "<|python_start|>[{name}({body})]<|python_end|>",
        "{name}={json}",
        ", ",
    ),
    "lfm2": ("<|tool_call_start|>[{name}({body})]<|tool_call_end|>", "{name}={json}", ", "),
    "mistral": ("[TOOL_CALLS]{name}[ARGS]{{{body}}}", '"{name}":{json}', ","),
    "apertus": (
        '<|tools_prefix|>[{{"{name}": {{{body}}}}}]<|tools_suffix|>',
        '"{name}":{json}',
        ",",
    ),
    "internlm": (
        '<|action_start|><|plugin|>{{"name": "{name}", "parameters": {{{body}}}}}<|action_end|>',
        '"{name}":{json}',
        ",",
    ),
}
NAMED = '{{{{"name": "{{name}}", "arguments": {{{{{{body}}}}}}}}}}'
FORMS |= {
    parser: (form.format(NAMED.format()), '"{name}":{json}', ",")
    for parser, form in (
        ("ernie45", "<tool_call>\n{0}\n</tool_call>"),
        ("granite", "<|tool_call|>[{0}]"),
        ("granite4", "<tool_call>\n{0}\n</tool_call>"),
        ("jamba", "<tool_calls>[\n{0}\n]</tool_calls>"),
    )
}
FORMS |= {
    "qwen3_xml": FORMS["qwen3_coder"],
    "step3p5": FORMS["qwen3_coder"],
    "glm45": FORMS["glm47"],
    "ling3": FORMS["glm47"],
}
"""Parser -> a call, an argument, and what is between two arguments."""

ONLY_WHOLE = {"pythonic", "llama4_pythonic"}
"""Parsers that read no call after other text."""


def call_text(parser: str, name: str, arguments: dict[str, Any]) -> str:
    """A call as the parser's models write it."""
    call, argument, between = FORMS[parser]
    body = between.join(
        argument.format(
            name=key,
            value=value if isinstance(value, str) else json.dumps(value, separators=(",", ":")),
            is_text=json.dumps(isinstance(value, str)),
            json=json.dumps(value, separators=(",", ":"), ensure_ascii=False),
        )
        for key, value in arguments.items()
    )
    return call.format(name=name, body=body)


def plain(text: str) -> str:
    """The text without tokens, of which a text beside calls has none."""
    return text.removeprefix("<|python_start|>").removesuffix("<|python_end|>")


class Held:
    """A parser with the constraint that its grammar makes."""

    def __init__(self, name: str, tokenizer: Any, parsing: Parsing) -> None:
        self.name = name
        self._tokenizer = tokenizer
        self._parsing = parsing
        self._known = from_tokenizer(tokenizer)

    def constraint(self, answer: StructuredOutput | None) -> CallConstraint:
        texts = {name: json.dumps(schema) for name, schema in SCHEMAS.items()}
        return self._parsing.call_constraint(texts, answer, single_call=False)

    def matcher(self, constraint: CallConstraint) -> LLMatcher:
        grammar = LLMatcher.grammar_from_lark(constraint.constraint.value)
        matcher = LLMatcher(self._known, grammar)
        assert not matcher.get_error(), matcher.get_error()
        return matcher

    def tokens(self, text: str) -> list[int]:
        return self._known.tokenize_bytes(text.encode(), parse_special=True)

    def accepts(self, constraint: CallConstraint, text: str) -> bool:
        matcher, tokens = self.matcher(constraint), self.tokens(text)
        return bool(
            matcher.validate_tokens(tokens) == len(tokens)
            and matcher.consume_tokens(tokens)
            and matcher.is_accepting()
        )

    def calls(self, text: str, token_ids: list[int]) -> list[tuple[str, Any]]:
        """What vLLM's parser reads."""
        everything = Delta(text, tuple(token_ids), finish_reason=FinishReason.STOP)
        message = self._parsing.new_parser().whole(everything)
        return [(call.name, json.loads(call.arguments)) for call in message.calls]

    def sample(self, constraint: CallConstraint, seed: int) -> tuple[str, list[int]]:
        """A text that the grammar lets through, with its tokens."""
        chance = random.Random(seed)
        begin = chance.choice(constraint.begins)
        matcher, token_ids = self.matcher(constraint), self.tokens(begin)
        assert matcher.consume_tokens(token_ids)
        mask = bitmasks.allocate_token_bitmask(1, self._known.vocab_size)
        argument = FORMS[self.name][1]
        end_of_text = self.tokens(argument.partition("{value}")[2] or '"')
        while not (matcher.is_stopped() or matcher.is_accepting()):
            ends = matcher.validate_tokens(end_of_text) == len(end_of_text)
            if ends and chance.random() < 0.3:
                chosen = end_of_text
            else:
                bitmasks.fill_next_token_bitmask(matcher, mask)
                bits = mask.view("uint8")[0]
                allowed = [i for i in range(self._known.vocab_size) if bits[i // 8] >> i % 8 & 1]
                assert not matcher.get_error(), matcher.get_error()
                chosen = [chance.choice([i for i in allowed if i != self._known.eos_token])]
            assert matcher.consume_tokens(chosen)
            token_ids += chosen
            assert len(token_ids) < 4_000, self._tokenizer.decode(token_ids)[-200:]
        return self._tokenizer.decode(token_ids), token_ids


@pytest.fixture(params=sorted(FORMS))
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Held:
    """Each parser, with a tokenizer that has its tokens."""
    name = request.param
    tokenizer = tokenizer_of(ParserKind("tool_call_parser", name))
    tokenizer.add_tokens(list(OTHER_TOKENS), special_tokens=True)
    monkeypatch.setattr(module, "load_tokenizer", lambda config: tokenizer)
    parsers = VllmParsers(EngineConfig(TARGET, "demo", tool_call_parser=name))
    parsers.load()
    parsing = parsers.parsing(ParsingRequest((5,), TOOLS), None)
    assert parsing is not None
    return Held(name, tokenizer, parsing)


def test_right_calls_are_accepted_and_read(held: Held) -> None:
    constraint = held.constraint(ANSWER)
    for name, arguments in (
        ("get_weather", WEATHER),
        ("get_weather", {"city": "3", "days": 20}),
        ("get_weather", {"city": "", "days": 1, "note": "null and void"}),
        ("now", {}),
        ("anything", {}),
        ("anything", {"a": "b", "c_d": "e f"}),
    ):
        begin = constraint.begins[0]
        text = begin[: -len(begin.lstrip())] + call_text(held.name, name, arguments)
        assert held.accepts(constraint, text), text
        assert held.calls(text, held.tokens(text)) == [(name, arguments)]
    assert held.accepts(constraint, '{"a":1}')


def test_wrong_calls_are_not(held: Held) -> None:
    constraint = held.constraint(ANSWER)
    for name, arguments in (
        ("get_weather", {**WEATHER, "unit": "miles"}),
        ("get_weather", {**WEATHER, "days": 30}),
        ("get_weather", {**WEATHER, "days": "many"}),
        ("get_weather", {**WEATHER, "hours": ["1"]}),
        ("get_weather", {"city": "Bonn"}),
        ("get_weather", {"days": 3, "city": "Bonn"}),
        ("get_weather", {"city": "Bonn", "days": 3, "other": "x"}),
        ("now", {"city": "Bonn"}),
        ("get_time", {}),
    ):
        text = call_text(held.name, name, arguments)
        assert not held.accepts(constraint, text), text
    for text in ("Hello.", "Well. " + call_text(held.name, "now", {})):
        assert not held.accepts(constraint, text), text


def test_in_free_text_calls_are_held(held: Held) -> None:
    constraint = held.constraint(None)
    right, wrong = (
        call_text(held.name, "get_weather", {"city": "Bonn", "days": days}) for days in (3, 30)
    )
    for text in ("", "5 < 6.", right):
        assert held.accepts(constraint, text), text
    assert not held.accepts(constraint, wrong)
    if held.name in ONLY_WHOLE:
        assert held.accepts(constraint, f"Well, {plain(wrong)}")
        assert held.calls(plain(f"Well. {wrong}"), held.tokens(wrong)) == []
    else:
        assert held.accepts(constraint, f"Well. {right}")
        assert not held.accepts(constraint, f"Well. {wrong}")


@pytest.mark.parametrize("samples", proved_beyond([12], [12, 30]))
def test_every_call_that_the_grammar_makes_is_read_and_fits_its_schema(
    held: Held, samples: int
) -> None:
    constraint = held.constraint(ANSWER)
    counts = dict.fromkeys(SCHEMAS, 0)
    for seed in range(samples):
        text, token_ids = held.sample(constraint, seed)
        calls = held.calls(text, token_ids)
        assert calls, text
        for name, arguments in calls:
            jsonschema.validate(arguments, SCHEMAS[name])
            counts[name] += 1
    assert all(counts.values()), counts


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({"x": {"type": "string", "pattern": "a+"}}, "pattern"),
        ({"x": {"type": "string", "maxLength": 3}}, "maxLength"),
        ({"x": {"enum": ["a", "</parameter>"]}}, "enum with marks"),
        ({"x": {"enum": ["a", 1]}}, "a property without a type"),
        ({"x": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}]}}, "anyOf"),
        ({"x": {"$ref": "#/$defs/none"}}, "$ref"),
        ({"x": True}, "a property without a schema"),
        ({"x": {"type": 5}}, "a property without a type"),
        ({"x": {"type": [5]}}, "a property without a type"),
        ({"x": {"enum": 5}}, "a property without a type"),
        ({"x": {"anyOf": 5}}, "anyOf that is not a list"),
        ({"x": {"anyOf": [5]}}, "a property without a type"),
    ],
)
def test_what_marked_parameters_cannot_hold_is_named(schema: dict[str, Any], part: str) -> None:
    with pytest.raises(NoCallGrammar, match=re.escape(part)):
        writer().arguments({"type": "object", "properties": schema})


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({"type": "object", "minProperties": 1}, "minProperties"),
        ({"type": "object", "required": ["y"]}, "required y"),
        ({"type": "object", "required": 5}, "required that is not a list"),
        ({"type": "object", "required": [[]]}, "required that is not a list"),
        ({"type": "object", "properties": [1]}, "properties that are not an object"),
        (
            {
                "type": "object",
                "properties": {f"p{i}": {"type": "integer"} for i in range(5000)},
                "$defs": {"long": {"description": "x" * 250_000}},
            },
            "so many properties beside so long definitions",
        ),
    ],
)
def test_what_an_object_of_parameters_cannot_hold_is_named(
    schema: dict[str, Any], part: str
) -> None:
    with pytest.raises(NoCallGrammar, match=part):
        writer().arguments(schema)


def writer() -> ParameterWriter:
    """A writer of Qwen3-Coder's arguments, whose rules nobody reads."""
    return ParameterWriter(
        STYLES["qwen_xml"],
        literal=json.dumps,
        rule=lambda kind, *_: kind,
        json_value=json.dumps,
        up_to_token=lambda text: (text, ""),
    )


def test_the_tokens_tell_the_form_of_mistral() -> None:
    schemas = {"f": {"type": "object"}}
    for tokens, begin in (
        (("[TOOL_CALLS]", "[ARGS]"), "[TOOL_CALLS]f[ARGS]"),
        (("[TOOL_CALLS]",), "[TOOL_CALLS]["),
    ):
        tag = own_tag("mistral", schemas, tokens, single_call=False)
        assert tag is not None
        assert call_begins(tag) == (begin,)


def test_a_name_that_python_lacks_has_no_grammar() -> None:
    with pytest.raises(NoCallGrammar, match="'get-weather'"):
        own_tag("pythonic", {"get-weather": {"type": "object"}}, (), single_call=False)
    assert own_tag("gemma4", {"f": {"type": "object"}}, (), single_call=False) is None


def test_the_document_lists_the_parsers_with_a_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    document = (Path(__file__).parents[4] / "docs" / "api.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:JSON|marked parameters|Python) \| (.*) \|$", document, re.MULTILINE)
    documented = set(re.findall(r"`(\w+)`", " ".join(rows)))
    has_grammar = set()
    for kind in (*all_parsers(), ParserKind("tool_call_parser", TOOL_CALL_PARSER)):
        if kind.setting != "tool_call_parser":
            continue
        parsing = loaded(kind, monkeypatch).parsing(ParsingRequest((5,), TOOLS), None)
        assert parsing is not None
        texts = {name: json.dumps(schema) for name, schema in SCHEMAS.items()}
        try:
            parsing.call_constraint(texts, ANSWER, single_call=False)
        except NoCallGrammar:
            continue
        has_grammar.add(kind.name)
    assert has_grammar == documented & set(compat.ToolParserManager.list_registered())
