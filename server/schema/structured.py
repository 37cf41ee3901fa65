"""Structured output in request bodies: OpenAI's `response_format` and vLLM's `structured_outputs`.

`structured_outputs` also takes regular expressions, choices and grammars. Keywords of a schema that
the engine cannot enforce are refused with OpenAI's `strict`, and left out with notice otherwise.
The engine checks whether it supports the rest of a schema, or a pattern.
"""

import json
from dataclasses import replace
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from pydantic import AfterValidator, BaseModel, Field

from engine_adapter.seam.schema_keywords import MAX_ITEMS, num_items, relax
from engine_adapter.seam.text import short_repr, truncate
from engine_adapter.seam.types import ConstraintKind, StructuredOutput
from server.errors import InvalidField
from server.schema.base import Strict, check_unicode
from server.schema.bounds import (
    MAX_DESCRIPTION,
    MAX_GRAMMAR_CHARS,
    MAX_NESTING,
    MAX_REGEX_CHARS,
    MAX_SCHEMA_CHARS,
    MAX_TEXTS,
    MAX_TEXTS_CHARS,
    check_schema,
    too_many,
)


def not_blank(text: str) -> str:
    """The text itself. Raises `ValueError` for one that is blank, or not valid Unicode."""
    if not check_unicode(text).strip():
        raise ValueError("must not be empty")
    return text


Regex = Annotated[str, Field(max_length=MAX_REGEX_CHARS), AfterValidator(not_blank)]
"""A regular expression."""

Grammar = Annotated[str, Field(max_length=MAX_GRAMMAR_CHARS), AfterValidator(not_blank)]
"""A grammar in GBNF or Lark's syntax."""


def _together(texts: list[str]) -> list[str]:
    if (chars := sum(map(len, texts))) > MAX_TEXTS_CHARS:
        raise ValueError(too_many("characters in all its texts", MAX_TEXTS_CHARS, chars))
    return texts


Choice = Annotated[
    list[Annotated[str, AfterValidator(not_blank)]],
    Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True),
    AfterValidator(_together),
]
"""The texts of which the answer is one."""


class JsonSchemaFormat(Strict):
    """OpenAI's wrapper of a JSON schema. With `strict` every keyword is enforced, or refused."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    schema_: dict[str, Any] = Field(alias="schema")
    description: Annotated[str, Field(max_length=MAX_DESCRIPTION)] | None = None
    strict: bool | None = None


class TextFormat(Strict):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Strict):
    """Any JSON object. `schema` is llama.cpp's: JSON that fits it."""

    type: Literal["json_object"]
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class JsonFormat(Strict):
    """JSON that fits a schema. One beside the wrapper is known in order to be refused."""

    type: Literal["json_schema"]
    json_schema: JsonSchemaFormat
    schema_: Any = Field(None, alias="schema")


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonFormat, Field(discriminator="type")]
"""OpenAI's `response_format`."""


class StructuredOutputs(Strict):
    """vLLM's `structured_outputs`: at most one of its fields."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: Literal[True] | None = None
    regex: Regex | None = None
    choice: Choice | None = None
    grammar: Grammar | None = None


def from_format(
    body: TextFormat | JsonObjectFormat | JsonSchemaFormat, param: str, schema_param: str
) -> StructuredOutput | None:
    """The constraint of a format, `None` for any text.

    Args:
        param: the field of the format.
        schema_param: the field of its JSON schema.

    Raises:
        InvalidField: the schema cannot work.
    """
    if isinstance(body, TextFormat):
        return None
    if isinstance(body, JsonObjectFormat):
        if body.schema_ is not None:
            return schema_constraint(body.schema_, f"{param}.schema")
        return StructuredOutput(ConstraintKind.JSON_OBJECT, param=param)
    constraint = schema_constraint(body.schema_, schema_param, strict=bool(body.strict))
    return replace(constraint, param=param)


def from_response_format(body: ResponseFormat) -> StructuredOutput | None:
    """The constraint, `None` for any text. Raises `InvalidField`."""
    if not isinstance(body, JsonFormat):
        return from_format(body, "response_format", "")
    if body.schema_ is not None:
        message = "response_format.schema: send it as response_format.json_schema.schema."
        raise InvalidField("response_format.schema", message)
    return from_format(body.json_schema, "response_format", "response_format.json_schema.schema")


def from_structured_outputs(body: StructuredOutputs) -> StructuredOutput | None:
    """The constraint, `None` if no field is given. Raises `InvalidField`."""
    names = [name for name in type(body).model_fields if getattr(body, name) is not None]
    if not names:
        return None
    if len(names) > 1:
        listed = ", ".join(name.rstrip("_") for name in names)
        message = f"structured_outputs takes one of its fields, and {listed} are given."
        raise InvalidField("structured_outputs", message)
    param = f"structured_outputs.{names[0].rstrip('_')}"
    if body.choice is not None:
        return StructuredOutput(ConstraintKind.CHOICE, choices=tuple(body.choice), param=param)
    if body.regex is not None:
        return StructuredOutput(ConstraintKind.REGEX, body.regex, param=param)
    if body.grammar is not None:
        return StructuredOutput(ConstraintKind.GRAMMAR, body.grammar, param=param)
    if body.json_ is not None:
        return schema_constraint(body.json_, param)
    return StructuredOutput(ConstraintKind.JSON_OBJECT, param=param)


def constraint_field(param: str, format_field: str) -> str:
    """The field that sets a constraint.

    Args:
        param: the path of the constraint, or of a part of it.
        format_field: of the text's format.
    """
    return format_field if param.startswith(format_field) else param.partition(".")[0]


def schema_constraint(
    schema: dict[str, Any] | str, param: str, *, strict: bool = False
) -> StructuredOutput:
    """JSON that fits a schema, without the keywords that the engine cannot enforce.

    Raises `InvalidField`, naming `param`, for a schema that cannot work and, with `strict`, for
    one with such keywords.
    """
    text, relaxed = _json(schema, param)
    unenforced = relax(relaxed)
    if unenforced and strict:
        names = truncate(", ".join(unenforced))
        message = f"{param} has keywords that cannot be enforced with strict: {names}."
        raise InvalidField(param, message)
    if num_items(relaxed) > MAX_ITEMS:
        limit = f"add up to more than {MAX_ITEMS:,}; lower them, or leave them out"
        raise InvalidField(param, f"{param}: minItems and maxItems {limit}.")
    if unenforced:
        text = json.dumps(relaxed)
    return StructuredOutput(ConstraintKind.JSON_SCHEMA, text, param=param, unenforced=unenforced)


def _json(schema: dict[str, Any] | str, param: str) -> tuple[str, dict[str, Any]]:
    """A schema as JSON text, and a copy of it as an object."""
    try:
        value = _parsed(schema, param) if isinstance(schema, str) else schema
        if not isinstance(value, dict):
            raise InvalidField(param, f"{param} must be a JSON object.")
        check_schema(value, param)
        text = json.dumps(value, allow_nan=False)
        copy: dict[str, Any] = json.loads(text)
    except RecursionError:
        reason = too_many("levels of objects and lists", MAX_NESTING)
        raise InvalidField(param, f"{param} {reason}.") from None
    except ValueError as error:
        raise InvalidField(param, f"{param} is not a JSON schema: {error}") from None
    if (ref := _circular_ref(value)) is not None:
        raise InvalidField(
            param, f"{param}: the $ref {short_repr(ref)} leads to itself, so no text matches it."
        )
    return text, copy


def _parsed(text: str, param: str) -> Any:
    if len(text) > MAX_SCHEMA_CHARS:
        reason = too_many("characters", MAX_SCHEMA_CHARS, len(text))
        raise InvalidField(param, f"{param} {reason}.")
    return json.loads(text)


def _circular_ref(schema: dict[str, Any]) -> str | None:
    """A `$ref` of the schema that leads to itself through other `$ref`s only, if there is one."""
    nodes: list[Any] = [schema]
    followed: set[str] = set()
    while nodes:
        node = nodes.pop()
        if isinstance(node, list):
            nodes.extend(node)
        if not isinstance(node, dict):
            continue
        nodes.extend(node.values())
        chain: set[str] = set()
        while isinstance(node, dict) and isinstance(ref := node.get("$ref"), str):
            if ref in chain:
                return ref
            if ref in followed:  # each chain is followed once, not from each of its members
                break
            chain.add(ref)
            node = _resolve(schema, ref)
        followed |= chain
    return None


def _resolve(schema: Any, ref: str) -> Any:
    """The target of a `$ref` within the schema (a JSON pointer, RFC 6901), else `None`."""
    document, _, pointer = ref.partition("#")
    head, *keys = unquote(pointer).split("/")
    if document or head:
        return None
    for key in keys:
        if not isinstance(schema, dict):
            return None
        schema = schema.get(key.replace("~1", "/").replace("~0", "~"))
    return schema


class ForeignConstraints(BaseModel):
    """The fields. An empty text, where the other server sends it for "none", is none."""

    grammar: (
        Annotated[str, Field(max_length=MAX_GRAMMAR_CHARS), AfterValidator(check_unicode)] | None
    ) = None
    json_schema: dict[str, Any] | str | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: Regex | None = None
    guided_choice: Choice | None = None
    guided_grammar: Grammar | None = None
    regex: Regex | None = None
    ebnf: Grammar | None = None

    def foreign_constraints(self) -> list[StructuredOutput]:
        """The constraints that are given, in the order of the fields. Raises `InvalidField`."""
        constraints = [
            _of_text(ConstraintKind.GRAMMAR, self.grammar, "grammar"),
            _of_schema(self.json_schema, "json_schema"),
            self._of_format(),
            _of_schema(self.guided_json, "guided_json"),
            _of_text(ConstraintKind.REGEX, self.guided_regex, "guided_regex"),
            _of_text(ConstraintKind.GRAMMAR, self.guided_grammar, "guided_grammar"),
            _of_text(ConstraintKind.REGEX, self.regex, "regex"),
            _of_text(ConstraintKind.GRAMMAR, self.ebnf, "ebnf"),
        ]
        if self.guided_choice is not None:
            choices = tuple(self.guided_choice)
            constraints.append(
                StructuredOutput(ConstraintKind.CHOICE, choices=choices, param="guided_choice")
            )
        return [constraint for constraint in constraints if constraint is not None]

    def _of_format(self) -> StructuredOutput | None:
        """Ollama's `json` is any object."""
        if self.format == "json":
            return StructuredOutput(ConstraintKind.JSON_OBJECT, param="format")
        return _of_schema(self.format or None, "format")


def _of_schema(schema: dict[str, Any] | str | None, param: str) -> StructuredOutput | None:
    return None if schema is None else schema_constraint(schema, param)


def _of_text(kind: ConstraintKind, text: str | None, param: str) -> StructuredOutput | None:
    return StructuredOutput(kind, text, param=param) if text and text.strip() else None
