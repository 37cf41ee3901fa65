"""A body that asks for much with little, and how its fields are made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Hostile:
    """A body.

    Attributes:
        fields: makes its fields, beside those of a small request.
        param: the field by which the gateway refuses it; `None` leaves it to the engine, whose
            answer may be a text or a refusal.
    """

    name: str
    fields: Callable[[], Fields]
    param: str | None = None
    path: str = CHAT

    def body(self) -> Fields:
        """The whole body. A text is long enough for a slow form to show."""
        small: dict[str, Fields] = {
            CHAT: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 300},
            COMPLETIONS: {"prompt": "a", "max_tokens": 16},
            RESPONSES: {"input": "a", "max_output_tokens": 16},
        }
        return {**small[self.path], **self.fields()}


def schema(of: Callable[[], Fields]) -> Callable[[], Fields]:
    """A chat's `response_format` with a JSON schema."""
    return lambda: {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": of()}}
    }


def outputs(**fields: Any) -> Callable[[], Fields]:
    """`structured_outputs` with these fields."""
    return lambda: {"structured_outputs": fields}


def pattern(regex: str) -> Callable[[], Fields]:
    return outputs(regex=regex)


def in_string(regex: str) -> Callable[[], Fields]:
    return schema(lambda: {"type": "string", "pattern": regex})
