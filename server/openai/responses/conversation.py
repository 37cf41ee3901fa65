"""Items -> the messages of a chat.

A model writes its reasoning, its text and its calls as one message, which the Responses API splits
into items. Here they become one message again, so that the chat template sees what the model wrote.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.errors import InvalidField
from server.openai.responses.input_items import Item, summary_of

CALLS = ("function_call", "custom_tool_call")
OUTPUTS = ("function_call_output", "custom_tool_call_output")
"""The types of the items of calls, and of what they return."""

SUMMARIZED = "A summary of the conversation so far:"
"""The line before a summary, in the message that has its place."""

Message = dict[str, Any]
"""A message of a chat, as JSON has it."""


@dataclass(frozen=True, slots=True)
class Source:
    """An item, and the request's field that it comes from.

    Attributes:
        param: of an item that is not the request's own: `previous_response_id`.
    """

    item: Item
    param: str


@dataclass(frozen=True, slots=True)
class Turn:
    """A message of the chat, and the field that it comes from."""

    message: Message
    param: str


@dataclass(slots=True)
class _Answer:
    """An assistant's message that further items may complete."""

    param: str
    content: list[Item] | None = None
    reasoning: str = ""
    calls: list[Message] = field(default_factory=list)

    def takes(self, item: Item) -> bool:
        """Whether the item can belong to the same message: reasoning, then text, then calls."""
        if item["type"] in CALLS:
            return True
        if item["type"] == "message":
            return self.content is None and not self.calls
        return False

    def add(self, item: Item) -> None:
        """Adds an item."""
        match item["type"]:
            case "function_call" | "custom_tool_call":
                function = {"name": called_name(item), "arguments": _arguments(item)}
                call = {"id": item["call_id"], "type": "function", "function": function}
                self.calls.append(call)
            case "message":
                self.content = [_chat_part(part) for part in item["content"]]
            case _:
                self.reasoning = "\n".join(
                    part["text"] for part in item.get("content") or item["summary"]
                )

    def turn(self) -> Turn | None:
        """The message; `None` for reasoning that has no text."""
        if self.content is None and not self.calls and not self.reasoning:
            return None
        message: Message = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = self.calls
        return Turn(message, self.param)


def turns(sources: Sequence[Source]) -> list[Turn]:
    """The messages of the items, in order. Raises `InvalidField`."""
    _check_calls(sources)
    return list(_turns(sources))


def beginnings(conversation: Sequence[Turn]) -> list[int]:
    """Where a shorter conversation can begin, the latest first; an answer needs its question."""
    places = [
        place
        for place, turn in enumerate(conversation)
        if place and turn.message["role"] not in ("assistant", "tool")
    ]
    return places[::-1]


def _turns(sources: Sequence[Source]) -> Iterator[Turn]:
    answer: _Answer | None = None
    for source in sources:
        item = source.item
        if answer is not None and not (_is_answer(item) and answer.takes(item)):
            if turn := answer.turn():
                yield turn
            answer = None
        if not _is_answer(item):
            yield Turn(_message(item), source.param)
            continue
        answer = answer or _Answer(source.param)
        answer.add(item)
    if answer is not None and (turn := answer.turn()):
        yield turn


def _is_answer(item: Item) -> bool:
    """Whether a model wrote the item."""
    return item["type"] in (*CALLS, "reasoning") or item.get("role") == "assistant"


def _message(item: Item) -> Message:
    if item["type"] == "message":
        return {"role": item["role"], "content": [_chat_part(part) for part in item["content"]]}
    if item["type"] == "compaction":
        summary = summary_of(item["encrypted_content"])
        return {"role": "user", "content": f"{SUMMARIZED}\n\n{summary}"}
    output = item["output"]
    content = output if isinstance(output, str) else [_chat_part(part) for part in output]
    return {"role": "tool", "tool_call_id": item["call_id"], "content": content}


def called_name(item: Item) -> str:
    """The name under which the model sees a called tool."""
    namespace = item.get("namespace")
    return item["name"] if namespace is None else flat_name(namespace, item["name"])


def flat_name(namespace: str, name: str) -> str:
    """The name under which the model sees a tool of a namespace, as in vLLM."""
    return f"{namespace}__{name}"


def _arguments(item: Item) -> str:
    """A call's arguments as JSON text; a custom tool is a function of one text."""
    if item["type"] == "custom_tool_call":
        return json.dumps({"input": item["input"]}, ensure_ascii=False)
    arguments: str = item["arguments"]
    return arguments


def _chat_part(part: Item) -> Item:
    """The part in a chat's format."""
    if part["type"] == "input_image":
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return {"type": "text", "text": part["refusal" if part["type"] == "refusal" else "text"]}


def _check_calls(sources: Sequence[Source]) -> None:
    """Every output needs its call, and every call its output: the template shows both."""
    waiting: dict[str, str] = {}
    for source in sources:
        item, param = source.item, source.param
        if item["type"] in CALLS:
            waiting[item["call_id"]] = param
        elif item["type"] in OUTPUTS and waiting.pop(item["call_id"], None) is None:
            name = f"{param}.call_id"
            message = f"{name}: no call that waits for its output has this call_id."
            raise InvalidField(name, message)
    for call_id, param in waiting.items():
        message = f"{param}: the call {call_id[:64]!r} has no output."
        raise InvalidField(param, message)
