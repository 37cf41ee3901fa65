"""The grammar of the calls that a parser reads, in the Lark syntax of llguidance.

vLLM has the syntax of its parsers' calls as structural tags for xgrammar. The engine's backend is
llguidance, which takes the same parts as a grammar
(https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md).
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from engine_adapter.seam.parsing import NoCallGrammar
from engine_adapter.vllm_engine.gateway.call_parameters import STYLES, ParameterWriter

Node = Mapping[str, Any]
"""A part of a structural tag, as JSON has it; `type` says which."""

_ANY_TEXT = r"/(.|\n)*/"
_JSON_PARTS = re.compile(r'"[^"]*"|\s+|[^\s"]')
_REPEATS = {"optional": "?", "plus": "+", "star": "*"}


def call_grammar(
    tag: Node,
    answer: Any,
    *,
    specials: Mapping[str, int],
    json_schema: Callable[[Any], Any],
) -> str:
    """The grammar of a text of calls, or of an answer.

    Args:
        tag: vLLM's structural tag of calls that the model may make.
        answer: the JSON schema of a text that is not calls; `None` leaves the text around calls
            free.
        specials: the special tokens with their ids. They do not match as text.
        json_schema: makes a JSON schema as llguidance takes it within a grammar.

    Raises:
        NoCallGrammar: the tag has a part that this syntax does not have.
    """
    writer = _Writer(specials, json_schema)
    if answer is None:
        start = writer.text_with_calls(tag)
    else:
        start = f"{writer.json(answer)} | {writer.calls(tag)}"
    return "\n".join(("%llguidance {}", f"start: {start}", *writer.rules))


def call_begins(node: Node) -> tuple[str, ...]:
    """How the text of a structural tag's calls can begin. Raises `NoCallGrammar`."""
    match node["type"]:
        case "tag":
            return (_text(node["begin"]),)
        case "const_string":
            return (node["value"],)
        case "sequence":
            return call_begins(node["elements"][0])
        case "or":
            return _all_begins(node["elements"])
        case "tags_with_separator" | "triggered_tags":
            return _all_begins(node["tags"])
        case "plus" | "whole_calls":
            return call_begins(node["content"])
        case other:
            raise _inexpressible(other)


def _all_begins(nodes: Iterable[Node]) -> tuple[str, ...]:
    return tuple(begin for node in nodes for begin in call_begins(node))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise _inexpressible("token")


def _inexpressible(kind: str) -> NoCallGrammar:
    return NoCallGrammar(f"its calls have a part that llguidance's grammars lack ({kind})")


class _Writer:
    """Writes expressions, and the rules that they name.

    Attributes:
        rules: the rules so far.
    """

    def __init__(self, specials: Mapping[str, int], json_schema: Callable[[Any], Any]) -> None:
        self.rules: list[str] = []
        self._names: dict[str, str] = {}
        self._specials = specials
        self._json_schema = json_schema
        longest_first = sorted(specials, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def text_with_calls(self, node: Node) -> str:
        """Any text, with calls where one of their triggers begins them, or the whole text."""
        if node["type"] == "whole_text":
            return self._expression(node["content"])
        if node["type"] == "whole_calls":
            begins = [begin for begin in call_begins(node) if not self._special.match(begin)]
            letters = re.escape("".join({begin[0] for begin in begins}))
            return f"{self.calls(node)} | /([^{letters}](.|\\n)*)?/"
        if node["type"] != "triggered_tags":
            raise _inexpressible(node["type"])
        tags = [(_text(tag["begin"]), tag) for tag in node["tags"]]
        calls = [
            self._triggered(trigger, triggered_tags)
            for trigger in node["triggers"]
            if (
                triggered_tags := [(begin, tag) for begin, tag in tags if begin.startswith(trigger)]
            )
        ]
        if node.get("stop_after_first"):
            return _one_of([*calls, _ANY_TEXT])
        return f"{_one_of(calls)}* {_ANY_TEXT}"

    def calls(self, node: Node) -> str:
        """Calls without text around them.

        Where vLLM has any text between calls, it does not say how the parser wants them
        separated, so there is one call.
        """
        if node["type"] == "triggered_tags":
            return _one_of([self.calls(tag) for tag in node["tags"]])
        if node["type"] == "whole_calls":
            return self._expression(node["content"])
        return self._expression(node)

    def json(self, schema: Any) -> str:
        """JSON of a schema. Each schema is written once."""
        return self._rule("json", f"%json {json.dumps(self._json_schema(schema))}")

    def _expression(self, node: Node) -> str:
        match node["type"]:
            case "tag":
                return self._tag(node, node["begin"])
            case "const_string":
                return self._literal(node["value"])
            case "text":
                return json.dumps(node["value"])
            case "message_text":
                return _ANY_TEXT
            case "json_schema" if node["style"] == "json":
                return self.json(node["json_schema"])
            case "regex":
                return "/" + re.sub(r"(?<!\\)/", r"\/", node["pattern"]) + "/"
            case "json_schema" if node["style"] in STYLES:
                return self._parameters(node["style"], node["json_schema"])
            case "sequence":
                return _sequence(self._expression(element) for element in node["elements"])
            case "or":
                return _one_of([self._expression(element) for element in node["elements"]])
            case "tags_with_separator":
                return self._separated(node)
            case "optional" | "plus" | "star" as kind:
                return f"({self._expression(node['content'])}){_REPEATS[kind]}"
            case other:
                raise _inexpressible(node.get("style", other))

    def _tag(self, node: Node, begin: Any) -> str:
        ends = node["end"] if isinstance(node["end"], list) else [node["end"]]
        end = _one_of([self._literal(_text(end)) or '""' for end in ends])
        content = node["content"]
        if content.get("style") == "qwen_xml" and not _text(node["begin"]).endswith("\n"):
            content = {**content, "style": "compact_xml"}  # MiMo's calls have no lines
        return _sequence((self._literal(_text(begin)), self._expression(content), end))

    def _parameters(self, style: str, schema: Any) -> str:
        writer = ParameterWriter(
            STYLES[style],
            literal=self._literal,
            rule=self._rule,
            json_value=self.json,
            up_to_token=self._up_to_token,
        )
        return writer.arguments(schema)

    def _separated(self, node: Node) -> str:
        call = _one_of([self._expression(tag) for tag in node["tags"]])
        if node.get("stop_after_first"):
            return call
        separator = self._literal(node["separator"])
        return f"{call} ({separator} {call})*" if separator else f"{call}+"

    def _triggered(self, trigger: str, tags: Sequence[tuple[str, Node]]) -> str:
        """Any text up to the first trigger, and the calls, whose begins are given with them."""
        rests = [self._tag(tag, begin[len(trigger) :]) for begin, tag in tags]
        if self._special.search(trigger):
            prefix = f"{_ANY_TEXT} {self._literal(trigger)}"
        else:
            prefix = self._rule("text", f"{_ANY_TEXT} {json.dumps(trigger)}", "[lazy]")
        return _sequence((prefix, _one_of(rests)))

    def _literal(self, text: str) -> str:
        """The text; its special tokens are tokens."""
        parts, done = [], 0
        for match in self._special.finditer(text):
            parts.append(_quoted(text[done : match.start()]))
            parts.append(f"<[{self._specials[match[0]]}]>")
            done = match.end()
        return _sequence((*parts, _quoted(text[done:])))

    def _up_to_token(self, text: str) -> tuple[str, str]:
        """The text before its first special token, and the rest."""
        match = self._special.search(text)
        position = len(text) if match is None else match.start()
        return text[:position], text[position:]

    def _rule(self, kind: str, body: str, option: str = "") -> str:
        """The name of a rule with this body."""
        if body not in self._names:
            name = self._names[body] = f"{kind}_{len(self._names)}"
            self.rules.append(f"{name}{option}: {body}")
        return self._names[body]


def _quoted(text: str) -> str:
    """The text as a terminal, or as one for each string and sign of JSON.

    The JSON of an answer may begin in the same way, and llguidance's lexer cannot take back a
    terminal that continues in another way.
    """
    parts = _JSON_PARTS.findall(text) if text.startswith("{") else [text]
    return _sequence(json.dumps(part) for part in parts if part)


def _sequence(parts: Iterable[str]) -> str:
    return " ".join(part for part in parts if part)


def _one_of(expressions: Sequence[str]) -> str:
    return f"({' | '.join(expressions)})"
