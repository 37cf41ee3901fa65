"""Where a chat's pictures are in its text: what chat templates get of a message with pictures."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from engine_adapter.seam.images import ImageSupport

TemplateMessage = dict[str, Any]


def with_placeholders(
    messages: Sequence[Mapping[str, Any]], support: ImageSupport
) -> list[TemplateMessage]:
    """Messages in the form that the chat template takes.

    A template that takes parts writes the placeholders itself. For any other, a message is one text
    that begins with a line for each of its pictures, as in vLLM.
    """
    numbers = count(1)
    return [_message(message, support, numbers) for message in messages]


def _message(
    message: Mapping[str, Any], support: ImageSupport, numbers: Iterator[int]
) -> TemplateMessage:
    content = message["content"]
    if support.takes_parts and isinstance(content, str):
        content = [{"type": "text", "text": content}]
    elif not support.takes_parts and isinstance(content, list):
        texts = [part["text"] for part in content if part["type"] == "text"]
        images = [
            support.placeholder.replace("{number}", str(next(numbers)))
            for part in content
            if part["type"] == "image"
        ]
        content = "\n".join([*images, *texts])
    return {**message, "content": content}
