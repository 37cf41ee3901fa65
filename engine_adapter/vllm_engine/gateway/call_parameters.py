"""Arguments of a call as marked parameters, in the Lark syntax of llguidance.

Models such as Qwen3-Coder write each argument between marks of its own: text as it is, all else as
JSON. vLLM's parsers turn it into the type that the tool's schema has, so a grammar must too.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from engine_adapter.seam.parsing import NoCallGrammar

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ParameterStyle:
    """How a parser's calls write an argument.

    Attributes:
        begin: the text before the value; `{name}` is the argument's, `{is_text}` true or false.
        end: the text after the value.
        between: the text between two arguments.
        marks: matches what no text may have, because a parser would take it for a mark; empty:
            texts are JSON too.
    """

    begin: str
    end: str
    between: str
    marks: str


_XML_MARKS = r"<\s*\/?\s*(parameter|function|tool_call|seed:tool_call)"
_DSML = '<｜DSML｜{space}parameter name="{{name}}" string="{{is_text}}">'  # noqa: RUF001
_DSML_END = "</｜DSML｜{space}parameter>\n"  # noqa: RUF001

STYLES: Mapping[str, ParameterStyle] = {
    "qwen_xml": ParameterStyle("<parameter={name}>\n", "\n</parameter>", "\n", _XML_MARKS),
    "compact_xml": ParameterStyle("<parameter={name}>", "</parameter>", "", _XML_MARKS),
    "seed_xml": ParameterStyle("<parameter={name}>", "</parameter>", "\n", _XML_MARKS),
    "glm_xml": ParameterStyle(
        "<arg_key>{name}</arg_key><arg_value>",
        "</arg_value>",
        "",
        r"<\/?(arg_key|arg_value|tool_call)",
    ),
    "minimax_xml": ParameterStyle(
        '<parameter name="{name}">', "</parameter>\n", "", r"<\/?(parameter|invoke|minimax)"
    ),
    "deepseek_xml": ParameterStyle(_DSML.format(space=""), _DSML_END.format(space=""), "", "DSML"),
    "deepseek_v4_1_xml": ParameterStyle(
        _DSML.format(space=" "), _DSML_END.format(space=" "), "", "DSML"
    ),
    "python": ParameterStyle("{name}=", "", ", ", ""),
}
"""Style of a structural tag -> how it writes an argument."""

_OBJECT_KEYWORDS = {
    *("type", "properties", "required", "additionalProperties"),
    *("$defs", "definitions", "$schema", "$id", "title", "description", "default", "examples"),
}
_NOTES = {"title", "description", "default", "examples", "deprecated"}
_MAX_TEXT = 1_000_000
"""The most characters of the JSON schemas of one call's arguments: each has all definitions."""

_NAME = re.compile(r"[\w.-]+")
_PYTHON_NAME = re.compile(r"[a-zA-Z]\w*", re.ASCII)
_ANY_NAME = "[a-zA-Z][a-zA-Z0-9_]{0,62}"


class ParameterWriter:
    """Writes the arguments of one style.

    Args:
        literal: makes an expression of a text, whose special tokens are tokens.
        rule: makes a rule of a kind, a body and an option or, of a kind in capitals, a terminal;
            returns its name.
        json_value: makes an expression of JSON of a schema.
        up_to_token: divides a text before its first special token.
    """

    def __init__(
        self,
        style: ParameterStyle,
        *,
        literal: Callable[[str], str],
        rule: Callable[..., str],
        json_value: Callable[[Schema], str],
        up_to_token: Callable[[str], tuple[str, str]],
    ) -> None:
        self._style = style
        self._literal = literal
        self._rule = rule
        self._json_value = json_value
        self._up_to_token = up_to_token

    def arguments(self, schema: Schema | bool) -> str:
        """The arguments of an object's schema, in its order.

        Raises:
            NoCallGrammar: the schema says what this form cannot hold.
        """
        if isinstance(schema, bool):
            schema = {"type": "object"}
        properties: Mapping[str, Any] = schema.get("properties") or {}
        required = schema.get("required") or ()
        if not isinstance(properties, Mapping):
            raise _unheld("properties that are not an object")
        if not _is_list_of_texts(required):
            raise _unheld("required that is not a list of texts")
        definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        if len(properties) * len(json.dumps(definitions)) > _MAX_TEXT:
            raise _unheld("so many properties beside so long definitions")
        if unknown := sorted(schema.keys() - _OBJECT_KEYWORDS):
            raise _unheld(unknown[0])
        if missing := sorted(set(required) - properties.keys()):
            raise _unheld(f"required {missing[0]}")
        if not properties:
            return "" if schema.get("additionalProperties") is False else self._any_arguments()
        # From the last to the first: what follows after no argument, and after some.
        after_none = after_some = self._rule("arguments", '""')
        for name, value in reversed(list(properties.items())):
            is_optional = name not in required
            resolved = _resolved(value, schema)
            after_none, after_some = (
                self._rule(
                    "arguments",
                    f"{self._argument(name, resolved, definitions, separator)} {after_some}"
                    + (f" | {otherwise}" if is_optional else ""),
                )
                for separator, otherwise in (("", after_none), (self._style.between, after_some))
            )
        return after_none

    def _argument(self, name: str, value: Any, definitions: Schema, separator: str) -> str:
        style = self._style
        if (_NAME if style.marks else _PYTHON_NAME).fullmatch(name) is None:
            raise _unheld(f"the property {name!r}")
        texts = _texts(value) if style.marks else None
        is_text = texts is not None or (bool(style.marks) and _may_be_text(value))
        begin = separator + style.begin.format(name=name, is_text=json.dumps(is_text))
        if texts is not None:
            return f"({' | '.join(self._literal(begin + text + style.end) for text in texts)})"
        if is_text:
            return f"{self._literal(begin)} {self._text()}"
        json_value = self._json_value({**definitions, **value})
        return f"{self._literal(begin)} {json_value} {self._literal(style.end)}".rstrip()

    def _any_arguments(self) -> str:
        style = self._style
        if not style.marks:
            name, any_value = self._rule("NAME", f"/{_ANY_NAME}/"), self._json_value({})
            return f'({name} "=" {any_value} (", " {name} "=" {any_value})*)?'
        parts = style.begin.format(name="\0", is_text="true").split("\0")
        name = self._rule("NAME", f"/{_ANY_NAME}/")
        begin = f"{self._literal(parts[0])} {name} {self._literal(parts[1])}"
        argument = f"{begin} {self._text()}"
        more = f"{self._literal(style.between + parts[0])} {name} {self._literal(parts[1])}"
        return f"({argument} ({more} {self._text()})*)?"

    def _text(self) -> str:
        """A text without marks, and what ends it."""
        text = self._rule("TEXT", f"/(.|\\n)*/ & ~/(.|\\n)*{self._style.marks}(.|\\n)*/")
        plain_end, token_end = self._up_to_token(self._style.end)
        if plain_end:
            # One lexeme: the lexer cannot take back a text that has begun to eat its end.
            end = json.dumps(plain_end, ensure_ascii=False)
            text = self._rule("text", f"{text} {end}", "[lazy]")
        return f"{text} {self._literal(token_end)}" if token_end else text


def _resolved(schema: Any, tool_schema: Schema) -> Any:
    """The schema that a reference within the tool's schema leads to. Raises `NoCallGrammar`."""
    if not isinstance(schema, Mapping):
        raise _unheld("a property without a schema")
    for _ in range(16):
        if "$ref" not in schema:
            return schema
        target: Any = tool_schema
        for part in str(schema["$ref"]).removeprefix("#/").split("/"):
            target = target.get(part) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping) or schema.keys() - _NOTES != {"$ref"}:
            break
        schema = target
    raise _unheld("$ref")


def _texts(schema: Schema) -> Sequence[str] | None:
    """The texts that the value is one of, if the schema names them."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not _is_list_of_texts(values):
        return None
    if schema.keys() - _NOTES - {"const", "enum", "type"}:
        raise _unheld("keywords beside enum")
    if any("<" in value or "\n" in value for value in values):
        raise _unheld("enum with marks")
    return list(values)


def _may_be_text(schema: Schema) -> bool:
    """Whether the value can be a text; then every text is one. Raises `NoCallGrammar`."""
    keywords = schema.keys() - _NOTES
    branches = schema.get("anyOf") if keywords == {"anyOf"} else None
    if branches is not None:
        if not isinstance(branches, list):
            raise _unheld("anyOf that is not a list")
        kinds: Sequence[str] = [kind for branch in branches for kind in _kinds(branch)]
        if "string" in kinds and any(branch.keys() - _NOTES != {"type"} for branch in branches):
            raise _unheld("anyOf")
    else:
        kinds = _kinds(schema)
        if "string" in kinds and keywords != {"type"}:
            raise _unheld(min(keywords - {"type"}))
    return "string" in kinds


def _kinds(schema: Any) -> Sequence[str]:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    kinds = [kind] if isinstance(kind, str) else kind
    if not _is_list_of_texts(kinds):
        raise _unheld("a property without a type")
    return list(kinds)


def _is_list_of_texts(value: Any) -> TypeGuard[Sequence[str]]:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


def _unheld(what: str) -> NoCallGrammar:
    return NoCallGrammar(f"its calls cannot be held to this part of a tool's schema: {what}")
