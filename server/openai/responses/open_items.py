"""The items of an output while they grow, and the events that open, extend and close each."""

from abc import ABC, abstractmethod
from typing import Any

from pydantic_core import from_json

from server.errors import ApiError
from server.http.event_stream import TEXT_PLACEHOLDER, json_text
from server.openai.responses.input_items import Item, new_id

EVENT_END = b"\n\n"
"""The end of an encoded event. JSON on one line does not have it."""


class DeltaFrame:
    """An event that differs from the next one of its kind in its `delta` and its number only."""

    def __init__(self, kind: str, fields: dict[str, Any]) -> None:
        text = _event(kind, {**fields, "delta": TEXT_PLACEHOLDER}, 0)
        self._before, rest_of_event = text.split(json_text(TEXT_PLACEHOLDER).encode())
        self._between, self._after = rest_of_event.rsplit(b"0", 1)

    def filled(self, delta: str, number: int) -> bytes:
        """The encoded event."""
        text = json_text(delta).encode()
        return b"%b%b%b%d%b" % (self._before, text, self._between, number, self._after)


class EventWriter:
    """Encodes the events of one stream and numbers them from 0.

    With `silent` it encodes nothing, for a response in one piece.
    """

    def __init__(self, *, silent: bool = False) -> None:
        self._silent = silent
        self._next = 0
        self._written: list[bytes] = []

    def write(self, kind: str, fields: dict[str, Any]) -> None:
        """Adds an event."""
        if not self._silent:
            self._written.append(_event(kind, fields, self._number()))

    def write_delta(self, frame: DeltaFrame, delta: str) -> None:
        """Adds an event that is encoded already but for its text."""
        if not self._silent:
            self._written.append(frame.filled(delta, self._number()))

    def take(self) -> list[bytes]:
        """The events since the last call."""
        events, self._written = self._written, []
        return events

    def _number(self) -> int:
        number = self._next
        self._next += 1
        return number


def error_event(error: ApiError, number: int) -> bytes:
    """The event of an error that no response has."""
    fields = {"code": error.code, "message": error.message, "param": error.param}
    return _event("error", fields, number)


def _event(kind: str, fields: dict[str, Any], number: int) -> bytes:
    # The number comes last: `DeltaFrame` finds it there.
    data = {"type": kind, **fields, "sequence_number": number}
    return f"event: {kind}\ndata: {json_text(data)}".encode() + EVENT_END


class OpenItem(ABC):
    """An item that grows by pieces of one kind.

    Attributes:
        id_prefix: the beginning of its id.
        text_events: the beginning of the types of the events that have its text.
        has_part: its text is a part of its content.
    """

    id_prefix: str
    text_events: str
    has_part = True

    def __init__(self, index: int) -> None:
        """`index` is its position in the output."""
        self.id = new_id(self.id_prefix)
        self.index = index
        self._texts: list[str] = []
        self._frame = DeltaFrame(f"{self.text_events}.delta", self.delta_fields())

    @property
    def text(self) -> str:
        """All its text."""
        return "".join(self._texts)

    @abstractmethod
    def item(self, status: str) -> Item:
        """The item as it is now."""

    @abstractmethod
    def done_fields(self) -> dict[str, Any]:
        """The fields of the event that has the whole text."""

    def delta_fields(self) -> dict[str, Any]:
        """The fields of an event that has new text, but for the text."""
        return self.place()

    def part(self) -> Item:
        """Its only part as it is now; empty for an item without one."""
        return {}

    def place(self) -> dict[str, Any]:
        """The fields that say where an event's text belongs."""
        place = {"item_id": self.id, "output_index": self.index}
        return {**place, "content_index": 0} if self.has_part else place

    def begin(self, events: EventWriter) -> None:
        """Opens it."""
        item = self.item("in_progress")
        if self.has_part:
            item["content"] = []
        events.write("response.output_item.added", {"output_index": self.index, "item": item})
        if self.has_part:
            events.write("response.content_part.added", {**self.place(), "part": self.part()})

    def extend(self, text: str, events: EventWriter) -> None:
        """Adds text."""
        self._texts.append(text)
        events.write_delta(self._frame, text)

    def extend_with(self, text: str, more: dict[str, Any], events: EventWriter) -> None:
        """Adds text, in an event that has more fields than usual."""
        self._texts.append(text)
        events.write(f"{self.text_events}.delta", {**self.delta_fields(), "delta": text, **more})

    def end(self, status: str, events: EventWriter) -> Item:
        """Closes it, and returns it."""
        events.write(f"{self.text_events}.done", {**self.place(), **self.done_fields()})
        if self.has_part:
            events.write("response.content_part.done", {**self.place(), "part": self.part()})
        item = self.item(status)
        events.write("response.output_item.done", {"output_index": self.index, "item": item})
        return item


class OpenMessage(OpenItem):
    """The text of the answer, with its log probabilities."""

    id_prefix = "msg"
    text_events = "response.output_text"

    def __init__(self, index: int) -> None:
        self.logprobs: list[Item] = []
        super().__init__(index)

    def item(self, status: str) -> Item:
        """A message with one part."""
        head = {"id": self.id, "type": "message", "status": status, "role": "assistant"}
        return {**head, "content": [self.part()]}

    def part(self) -> Item:
        """The text as a part."""
        logprobs = list(self.logprobs)
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": logprobs}

    def delta_fields(self) -> dict[str, Any]:
        """Every event has log probabilities; usually there are none."""
        return {**self.place(), "logprobs": []}

    def done_fields(self) -> dict[str, Any]:
        """The text and its log probabilities."""
        return {"text": self.text, "logprobs": self.logprobs}


class OpenReasoning(OpenItem):
    """The reasoning before the answer."""

    id_prefix = "rs"
    text_events = "response.reasoning_text"

    def item(self, status: str) -> Item:
        """Reasoning without a summary."""
        head = {"id": self.id, "type": "reasoning", "status": status}
        return {**head, "summary": [], "content": [self.part()]}

    def part(self) -> Item:
        """The reasoning as a part."""
        return {"type": "reasoning_text", "text": self.text}

    def done_fields(self) -> dict[str, Any]:
        """The whole reasoning."""
        return {"text": self.text}


class OpenCall(OpenItem):
    """A call of a function; its text is its arguments."""

    id_prefix = "fc"
    text_events = "response.function_call_arguments"
    has_part = False

    def __init__(self, index: int, call_id: str, name: str, namespace: str | None = None) -> None:
        self._call_id = call_id
        self._name = name
        self._namespace = namespace
        super().__init__(index)

    def item(self, status: str) -> Item:
        """The call with its arguments."""
        head = {"id": self.id, "type": "function_call", "status": status}
        return {**head, **self.call(), "arguments": self.text}

    def call(self) -> Item:
        """What names the call and its tool."""
        call = {"call_id": self._call_id, "name": self._name}
        return call if self._namespace is None else {**call, "namespace": self._namespace}

    def done_fields(self) -> dict[str, Any]:
        """The name and all arguments."""
        return {"name": self._name, "arguments": self.text}


class OpenTextCall(OpenCall):
    """A call of a custom tool; its text is its input."""

    id_prefix = "ctc"
    text_events = "response.custom_tool_call_input"

    def item(self, status: str) -> Item:
        """The call with its input."""
        head = {"id": self.id, "type": "custom_tool_call", "status": status}
        return {**head, **self.call(), "input": self.input()}

    def done_fields(self) -> dict[str, Any]:
        """The input."""
        return {"input": self.input()}

    def input(self) -> str:
        """What the tool gets."""
        return self.text


class OpenCustomCall(OpenTextCall):
    """A call of a custom tool; its text is a JSON object with its input, written at its end."""

    def extend(self, text: str, events: EventWriter) -> None:
        """Keeps a part of the object."""
        self._texts.append(text)

    def end(self, status: str, events: EventWriter) -> Item:
        """Closes it, and returns it."""
        events.write(f"{self.text_events}.delta", {**self.place(), "delta": self.input()})
        return super().end(status, events)

    def input(self) -> str:
        """The text in the object; the object itself, if the model wrote another one."""
        try:
            arguments = from_json(self.text, allow_partial="trailing-strings")
        except ValueError:
            return self.text
        value = arguments.get("input") if isinstance(arguments, dict) else None
        return value if isinstance(value, str) else self.text
