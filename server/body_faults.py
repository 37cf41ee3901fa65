"""What is wrong with a body that cannot be read, or whose fields are not valid."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi.exceptions import RequestValidationError

from engine_adapter.seam.text import truncate
from server.schema.known_fields import fields_at
from server.text import TOO_LONG, did_you_mean

MAX_BODY_LEVELS = 500
"""Levels of objects and lists in a body that are always read; Python's parser stops below 1000."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        param: the field's dotted path; `None` for the body as a whole.
        code: a short constant for programs, or `None`.
    """

    param: str | None
    message: str
    code: str | None = None


def unreadable(cause: BaseException | None) -> str:
    """Why a body cannot be read. FastAPI raises a 400 without a reason for it."""
    if isinstance(cause, RecursionError):
        return f"The body can have at most {MAX_BODY_LEVELS} levels of objects and lists."
    if isinstance(cause, UnicodeDecodeError):
        return "The body is not valid JSON: it is not in UTF-8."
    if isinstance(cause, ValueError):
        return "The body is not valid JSON: a number has too many digits."
    return "The body is not valid JSON."


def deepest_fault(error: RequestValidationError, body_type: Any) -> Fault:
    """The fault that is deepest in the body: of a union's branches, the one that fits best.

    Args:
        body_type: the type that the body was read as; `None` if it is not known.
    """
    candidates = [(_field(e["loc"], error.body), e) for e in error.errors()]
    # A list that is too long is also no text, where both are allowed. A required field that is
    # missing may be the one with an unknown name.
    unlikely = ("string_type", "missing")
    path, detail = max(candidates, key=lambda pair: (len(pair[0]), pair[1]["type"] not in unlikely))
    param = truncate(".".join(map(str, path)))
    kind = detail["type"]
    if kind == "json_invalid":
        position = detail["loc"][-1]
        reason = detail["ctx"]["error"]
        message = f"The body is not valid JSON: {reason}, at character {position}."
        return Fault(None, message, "invalid_json")
    if not path and isinstance(error.body, dict):
        return Fault(None, f"Invalid body: {detail['msg']}")
    if not path:
        message = "The body must be a JSON object, sent with `Content-Type: application/json`."
        return Fault(None, message)
    if kind == "missing":
        return Fault(param, f"{param} is required.", "missing_required_parameter")
    siblings = fields_at(body_type, path[:-1])
    if detail["input"] is None and isinstance(path[-1], str):
        named_fields = siblings.get(path[-1])
        is_required = named_fields is None or any(field.is_required() for field in named_fields)
        code = "missing_required_parameter" if is_required else None
        return Fault(param, f"{param} must not be null.", code)
    if kind == "extra_forbidden":
        prefix = "".join(f"{step}." for step in path[:-1])
        hint = did_you_mean(str(path[-1]), siblings, prefix) or "."
        return Fault(param, f"{param} is not a known field{hint}", "unknown_parameter")
    return _value_fault(param, detail)


def _value_fault(param: str, detail: Any) -> Fault:
    """The fault of a value that its field cannot have."""
    kind, context = detail["type"], detail.get("ctx", {})
    reason, code = detail["msg"].removeprefix("Value error, "), context.get("code")
    if kind == "union_tag_invalid":  # pydantic's message repeats the whole tag
        reason = f"{context['discriminator']} must be one of {context['expected_tags']}"
    elif kind in ("string_too_long", "too_long"):  # pydantic's messages do not say how long it is
        unit = "characters" if kind == "string_too_long" else "entries"
        code = TOO_LONG if kind == "string_too_long" else None
        reason = f"has {len(detail['input']):,} {unit}; the maximum is {context['max_length']:,}"
    return Fault(param, f"{param}: {reason}", code)


def _field(loc: Sequence[str | int], body: Any) -> list[str | int]:
    """The path of a field of the body, or a parameter of the query."""
    source, *steps = loc
    return steps if source == "query" else _path(steps, body)


def _path(loc: Sequence[str | int], body: Any) -> list[str | int]:
    """Pydantic's location without the parts that are not in the body, such as union tags."""
    path: list[str | int] = []
    for i, step in enumerate(loc):
        is_last = i == len(loc) - 1
        if isinstance(body, dict) and (step in body or is_last):
            body = body.get(step)
        elif isinstance(body, list) and isinstance(step, int) and step < len(body):
            body = body[step]
        else:
            continue
        path.append(step)
    return path
