"""The texts of gpt-oss that hold its calls or its answer to a schema, as structural tags."""

import json
from collections.abc import Mapping
from typing import Any

from engine_adapter.seam.parsing import NoCallGrammar
from engine_adapter.seam.schema_keywords import ANY_OBJECT
from engine_adapter.seam.types import ConstraintKind, StructuredOutput

Node = dict[str, Any]

_ANY_TEXT: Node = {"type": "message_text"}


def harmony_tag(schemas: Mapping[str, str], answer: StructuredOutput | None) -> Node:
    """A text: reasoning, then a call of one of the tools, or an answer.

    Args:
        schemas: tool -> the JSON schema of its arguments, as JSON text.
        answer: what the answer is held to; `None` leaves it free.

    Raises:
        NoCallGrammar: the answer is held to a grammar, which cannot stand within another one.
    """
    endings = [_final(_ANY_TEXT if answer is None else _content(answer))]
    endings += (_call(name, json.loads(schema)) for name, schema in schemas.items())
    notes = [_note("analysis")] if answer is not None else [_note("analysis"), _note("commentary")]
    message = {"type": "star", "content": _one_of(notes)}
    return {"type": "whole_text", "content": _sequence(message, _one_of(endings))}


def _note(channel: str) -> Node:
    """A message before the last one."""
    begin = f"<|channel|>{channel}<|message|>"
    return _sequence(_const(begin), _ANY_TEXT, _const("<|end|><|start|>assistant"))


def _final(content: Node) -> Node:
    return _sequence(_const("<|channel|>final"), _json_mark(), _const("<|message|>"), content)


def _call(name: str, schema: Any) -> Node:
    recipient = f" to=functions.{name}"
    header = _one_of(
        [_const(f"<|channel|>commentary{recipient}"), _const(f"{recipient}<|channel|>commentary")]
    )
    arguments = {"type": "json_schema", "style": "json", "json_schema": schema}
    end = {"type": "optional", "content": _const("<|call|>")}
    return _sequence(header, _json_mark(), _const("<|message|>"), arguments, end)


def _json_mark() -> Node:
    """The format of a message, which its header may have."""
    forms = [_const(" json"), _const(" <|constrain|>json")]
    return {"type": "optional", "content": _one_of(forms)}


def _content(answer: StructuredOutput) -> Node:
    match answer.kind:
        case ConstraintKind.JSON_OBJECT:
            return _json(ANY_OBJECT)
        case ConstraintKind.JSON_SCHEMA:
            return _json(answer.value)
        case ConstraintKind.REGEX:
            return {"type": "regex", "pattern": answer.value}
        case ConstraintKind.CHOICE:
            return _one_of([{"type": "text", "value": choice} for choice in answer.choices])
        case ConstraintKind.GRAMMAR:
            raise NoCallGrammar("a grammar of an answer cannot stand within that of a message")


def _json(schema: str) -> Node:
    return {"type": "json_schema", "style": "json", "json_schema": json.loads(schema)}


def _const(text: str) -> Node:
    return {"type": "const_string", "value": text}


def _one_of(nodes: list[Node]) -> Node:
    return {"type": "or", "elements": nodes}


def _sequence(*nodes: Node) -> Node:
    return {"type": "sequence", "elements": list(nodes)}
