"""Where a chat's media are in its text: what chat templates get of a message with media."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from engine_adapter.seam.media import MediaSupport, Modality

TemplateMessage = dict[str, Any]


def with_placeholders(
    messages: Sequence[Mapping[str, Any]], support: MediaSupport
) -> list[TemplateMessage]:
    """Messages in the form that the chat template takes.

    A template that takes parts writes the placeholders itself. For any other, a message is one text
    that begins with a line for each of its media, those of one modality together, as in vLLM.
    """
    numbers = Counter[Modality]()
    return [_message(message, support, numbers) for message in messages]


def _message(
    message: Mapping[str, Any], support: MediaSupport, numbers: Counter[Modality]
) -> TemplateMessage:
    content = message["content"]
    if support.takes_parts and isinstance(content, str):
        content = [{"type": "text", "text": content}]
    elif not support.takes_parts and isinstance(content, list):
        texts = [part["text"] for part in content if part["type"] == "text"]
        lines: dict[Modality, list[str]] = {}
        for modality in (Modality(part["type"]) for part in content if part["type"] != "text"):
            numbers[modality] += 1
            placeholder = support.modalities[modality].placeholder
            line = placeholder.replace("{number}", str(numbers[modality]))
            lines.setdefault(modality, []).append(line)
        content = "\n".join([*chain.from_iterable(lines.values()), *texts])
    return {**message, "content": content}
