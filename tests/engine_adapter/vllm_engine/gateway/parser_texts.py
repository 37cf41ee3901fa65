"""All parsers that vLLM offers, a tokenizer for each, and texts that make parsers slow or fail."""

import ast
import copy
import inspect
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from transformers import AutoTokenizer

from demo import model_path
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.parsing import ParsingRequest
from engine_adapter.seam.types import Delta, FinishReason
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway import parsing as module
from engine_adapter.vllm_engine.gateway.harmony import MARKS, REASONING_PARSER, TOOL_CALL_PARSER
from engine_adapter.vllm_engine.gateway.output_parser import VllmParser
from engine_adapter.vllm_engine.gateway.parsing import VllmParsers, VllmParsing

TARGET = str(model_path("target"))

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOLS = (
    {"type": "function", "function": {"name": "f", "description": None, "parameters": SCHEMA}},
)

WITHOUT_PACKAGE = {"cohere_command3", "cohere_command4"}
"""Parsers that need a package which is not installed."""

WITHOUT_TEMPLATE = {"hf", "beam"}
"""Parsers that read what a tokenizer declares of its responses, which no tokenizer here does."""

_MARK = re.compile(r"(?!.*\(\?)[<\[|\]{`][^\s\\^]{0,40}|\w+\[|</?\w+>?")
_MAX_MARKS = 10


@dataclass(frozen=True, slots=True)
class ParserKind:
    """A registered parser: its setting, and its name."""

    setting: str
    name: str

    def __str__(self) -> str:
        return f"{self.setting.removesuffix('_parser')}-{self.name}"


def all_parsers() -> list[ParserKind]:
    """Every parser of vLLM's that can be made here."""
    left_out = WITHOUT_PACKAGE | WITHOUT_TEMPLATE | {TOOL_CALL_PARSER, REASONING_PARSER}
    return [
        ParserKind(setting, name)
        for setting, manager in (
            ("tool_call_parser", compat.ToolParserManager),
            ("reasoning_parser", compat.ReasoningParserManager),
        )
        for name in manager.list_registered()
        if name not in left_out
    ]


class _AskedVocabulary(dict[str, int]):
    """A vocabulary that has every token which a parser asks for, and notes it."""

    def __init__(self, tokens: dict[str, int]) -> None:
        super().__init__(tokens)
        self.asked: list[str] = []

    def _note(self, token: Any) -> None:
        if not super().__contains__(token):
            self.asked.append(token)
            self[token] = len(self)

    def get(self, token: Any, default: Any = None) -> Any:
        self._note(token)
        return super().get(token, default)

    def __contains__(self, token: Any) -> bool:
        self._note(token)
        return True

    def __getitem__(self, token: Any) -> int:
        self._note(token)
        return super().__getitem__(token)


@cache
def demo_tokenizer() -> Any:
    """The demo's."""
    return AutoTokenizer.from_pretrained(TARGET)


def _composed(kind: ParserKind) -> Any:
    is_tool = kind.setting == "tool_call_parser"
    return compat.ParserManager.get_parser(
        tool_parser_name=kind.name if is_tool else None,
        reasoning_parser_name=None if is_tool else kind.name,
        enable_auto_tools=is_tool,
        model_name="demo",
        tokenizer=None,
    )


@cache
def asked_tokens(kind: ParserKind) -> tuple[str, ...]:
    """The tokens that a parser looks for and the demo's vocabulary lacks."""
    if kind.name in (TOOL_CALL_PARSER, REASONING_PARSER):
        return MARKS
    tokenizer = copy.deepcopy(demo_tokenizer())
    vocabulary = _AskedVocabulary(tokenizer.get_vocab())
    tokenizer.get_vocab = lambda: vocabulary
    _composed(kind)(tokenizer)
    return tuple(token for token in vocabulary.asked if token)


def tokenizer_of(kind: ParserKind) -> Any:
    """The demo's tokenizer with the tokens that the parser looks for."""
    tokenizer = copy.deepcopy(demo_tokenizer())
    tokenizer.add_tokens(list(asked_tokens(kind)), special_tokens=True)
    return tokenizer


def loaded(kind: ParserKind, monkeypatch: Any) -> VllmParsers:
    """The parser alone, as a server has it."""
    tokenizer = tokenizer_of(kind)
    monkeypatch.setattr(module, "load_tokenizer", lambda config: tokenizer)
    parsers = VllmParsers(EngineConfig(TARGET, "demo", **{kind.setting: kind.name}))  # type: ignore[arg-type]
    parsers.load()
    return parsers


def new_parser(parsers: VllmParsers) -> VllmParser:
    """A parser of a request with `TOOLS`, if it reads calls."""
    tools = TOOLS if parsers._config.tool_call_parser else ()
    parsing = parsers.parsing(ParsingRequest((5, 6), tools), None)
    assert isinstance(parsing, VllmParsing)
    return parsing.new_parser()


def deltas(parsers: VllmParsers, text: str, size: int = 7) -> list[Delta]:
    """A text in pieces of `size` characters; an added token is a piece of its own."""
    tokenizer = parsers._tokenizer
    added = sorted(tokenizer.added_tokens_encoder, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, added))})", text)
    made = []
    for i, part in enumerate(parts):
        if i % 2:
            made.append(Delta(part, (tokenizer.convert_tokens_to_ids(part),)))
        else:
            made += (Delta(part[j : j + size], (97, 98)) for j in range(0, len(part), size))
    return [*made, Delta("", (98,), finish_reason=FinishReason.STOP)]


def together(parts: list[Delta]) -> Delta:
    """All deltas as one."""
    token_ids = tuple(token for part in parts for token in part.token_ids)
    text = "".join(part.text for part in parts)
    return Delta(text, token_ids, finish_reason=FinishReason.STOP)


@cache
def marks(kind: ParserKind) -> tuple[str, ...]:
    """Texts that the parser looks for: what it asks of the vocabulary, and its code's constants."""
    composed = _composed(kind)
    of_text = composed.tool_parser_cls or composed.reasoning_parser_cls
    classes = [*of_text.__mro__, *getattr(of_text, "_parser_engine_cls", object).__mro__]
    own = [n for n in dict.fromkeys(c.__module__ for c in classes) if n.startswith("vllm.")]
    shared = ("abstract_tool_parser", "abs_reasoning_parsers", "adapters", "parser_engine")
    own = [n for n in own if not n.endswith((*shared, "abstract_parser"))]
    found = list(asked_tokens(kind))
    for name in own:
        tree = ast.parse(inspect.getsource(__import__(name, fromlist=["_"])))
        found += [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and _MARK.fullmatch(node.value)
        ]
    return tuple(dict.fromkeys(found))[:_MAX_MARKS]


def hostile_texts(kind: ParserKind, size: int) -> Iterator[tuple[str, str]]:
    """Texts of `size` characters, each with what it is."""
    bodies = {
        "plain": "some words, ",
        "digits": "1234567890",
        "list": "[",
        "list of calls": "f(a=1),",
        "objects": '{"a":',
        "escapes": '\\"',
        "spaces": " ",
        "lines": "\n",
        "angles": "<",
        "json calls": '{"name": "f", "arguments": {"a": "b"}}, ',
        "open tags": "<a>",
        "parameters": "<parameter=a>b</parameter>",
        "quotes": "'",
    }

    def filled(begin: str, body: str) -> str:
        return (begin + body * (1 + size // len(body)))[:size]

    for what, body in bodies.items():
        yield what, filled("", body)
    yield "pythonic", filled("[f(a=1),", "f(a=1),")
    yield "pythonic text", filled("[f(a='", "a")
    yield "json string", filled('{"name": "f", "arguments": {"a": "', "a")
    yield "json list", filled('[{"name": "f", "arguments": {"a": ', "[")
    yield "deep sum", filled("[f(a=", "-")
    inner = (
        *bodies.items(),
        ("long name", "a"),
        ("json string", '{"name": "f", "arguments": {"a": "aaaaaaaa"}, '),
    )
    known = marks(kind)
    for mark in known:
        yield f"{mark} again", filled("", mark)
        yield f"{mark} with text again", filled("", mark + "f\n")
        yield f"{mark} cut again", filled("", mark[:-1] + " " if len(mark) > 1 else mark)
    for first, second in itertools.pairwise(known):
        yield f"{first}{second} again", filled("", first + second)
        yield f"{first} {second} cut", filled(first, second[:-1] or second)
    everything = "".join(known)
    yield "all marks again", filled("", everything or "<")
    yield "all marks with calls", filled("", "".join(f'{m}{{"name": "f", ' for m in known) or "<")
    for mark in known[:6]:
        for what, body in inner:
            yield f"{mark} {what}", filled(mark, body)
