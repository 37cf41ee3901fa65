"""A request's input as items in OpenAI's format, with the ids under which they can be listed."""

import uuid
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

from server.errors import InvalidField
from server.schema.response_items import (
    CompactionItem,
    CustomCallItem,
    CustomCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputImage,
    InputItem,
    InputText,
    ItemWithStatus,
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


def compaction_item(summary: str) -> Item:
    """The item that has the place of a summarized conversation."""
    content = b64encode(summary.encode()).decode()
    return {"type": "compaction", "id": new_id("cmp"), "encrypted_content": content}


def summary_of(encrypted_content: str) -> str:
    """The summary in the content of a compaction. Raises `ValueError` if it is none of ours."""
    summary = b64decode(encrypted_content, validate=True).decode()
    if not summary:
        raise ValueError("an empty summary")
    return summary


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
        case CompactionItem():
            return _compaction(item, param)


def _call(item: FunctionCallItem | CustomCallItem) -> Item:
    call = {"call_id": item.call_id, "name": item.name}
    return call if item.namespace is None else {**call, "namespace": item.namespace}


def _output(item: FunctionCallOutputItem | CustomCallOutputItem) -> Item:
    output: str | list[Item] = (
        item.output if isinstance(item.output, str) else [_input_part(part) for part in item.output]
    )
    return {"call_id": item.call_id, "output": output}


def _compaction(item: CompactionItem, param: str) -> Item:
    """The item, if it was made here: see `compaction`."""
    name = f"{param}.encrypted_content"
    try:
        summary_of(item.encrypted_content)
    except ValueError:
        message = f"{name} was not made by this server's /v1/responses/compact; leave the item out."
        raise InvalidField(name, message) from None
    fields = {"id": item.id or new_id("cmp"), "encrypted_content": item.encrypted_content}
    return {"type": item.type, **fields}


def _head(item: ItemWithStatus, prefix: str) -> Item:
    """The fields that these items have."""
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
