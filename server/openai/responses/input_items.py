"""A request's input as items in OpenAI's format, with the ids under which they can be listed."""

import uuid
from collections.abc import Sequence
from typing import Any

from server.errors import InvalidField
from server.schema.response_items import (
    CustomCallItem,
    CustomCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputImage,
    InputItem,
    InputText,
    MessageItem,
    MessagePart,
    OutputText,
    ReasoningItem,
)

Item = dict[str, Any]
"""An item as JSON has it, of a request's input or of a response's output."""


def new_id(prefix: str) -> str:
    """A new id of an item."""
    return f"{prefix}_{uuid.uuid4().hex}"


def input_items(items: str | Sequence[InputItem], param: str = "input") -> list[Item]:
    """The items of a request, in full. Raises `InvalidField` for one that cannot be read.

    Args:
        param: the field that has them.
    """
    if isinstance(items, str):
        items = [MessageItem(type="message", role="user", content=items)]
    return [_item(item, f"{param}.{number}") for number, item in enumerate(items)]


def _item(item: InputItem, param: str) -> Item:
    match item:
        case MessageItem():
            return _message(item)
        case FunctionCallItem():
            return _head(item, "fc") | _call(item) | {"arguments": item.arguments}
        case CustomCallItem():
            return _head(item, "ctc") | _call(item) | {"input": item.input}
        case FunctionCallOutputItem():
            return _head(item, "fco") | _output(item)
        case CustomCallOutputItem():
            return _head(item, "cto") | _output(item)
        case ReasoningItem():
            return _reasoning(item, param)


def _call(item: FunctionCallItem | CustomCallItem) -> Item:
    call = {"call_id": item.call_id, "name": item.name}
    return call if item.namespace is None else {**call, "namespace": item.namespace}


def _output(item: FunctionCallOutputItem | CustomCallOutputItem) -> Item:
    output: str | list[Item] = (
        item.output if isinstance(item.output, str) else [_input_part(part) for part in item.output]
    )
    return {"call_id": item.call_id, "output": output}


def _head(item: InputItem, prefix: str) -> Item:
    """The fields that every item has."""
    status = item.status or "completed"
    return {"type": item.type, "id": item.id or new_id(prefix), "status": status}


def _message(item: MessageItem) -> Item:
    is_answer = item.role == "assistant"
    if isinstance(item.content, str):
        kind = OutputText(type="output_text", text=item.content) if is_answer else None
        parts: Sequence[MessagePart] = [kind or InputText(type="input_text", text=item.content)]
    else:
        parts = item.content
    content = [_part(part, is_answer=is_answer) for part in parts]
    return _head(item, "msg") | {"role": item.role, "content": content}


def _part(part: MessagePart, *, is_answer: bool) -> Item:
    if isinstance(part, InputText | OutputText):
        if is_answer:
            return {"type": "output_text", "text": part.text, "annotations": []}
        return {"type": "input_text", "text": part.text}
    if isinstance(part, InputImage):
        return _input_part(part)
    return {"type": "refusal", "refusal": part.refusal}


def _input_part(part: InputText | InputImage) -> Item:
    if isinstance(part, InputImage):
        return {"type": "input_image", "image_url": part.image_url, "detail": "auto"}
    return {"type": "input_text", "text": part.text}


def _reasoning(item: ReasoningItem, param: str) -> Item:
    if item.encrypted_content is not None and not item.content:
        message = (
            f"{param}.encrypted_content can be read only by the server that wrote it, and the "
            "item has no content; leave the item out."
        )
        raise InvalidField(f"{param}.encrypted_content", message, "unsupported_parameter")
    return _head(item, "rs") | {
        "summary": [{"type": "summary_text", "text": part.text} for part in item.summary],
        "content": [{"type": "reasoning_text", "text": part.text} for part in item.content or ()],
    }
