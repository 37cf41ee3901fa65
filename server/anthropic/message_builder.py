"""A message's deltas -> the message in one piece, or the events of its stream."""

import json
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from engine_adapter.seam.types import Delta, FinishReason
from server.errors import ApiError, anthropic_error
from server.http.event_stream import json_text
from server.openai.chat_shape import ChatShape
from server.openai.choices import ChoiceState
from server.openai.message_parts import (
    CallArguments,
    CallBegin,
    Piece,
    ReasoningPiece,
    TextPiece,
)
from server.openai.readers import NamedReader
from server.openai.request import AdmittedRequest
from server.openai.usage import num_cached_tokens, response_metrics, usage


class MessageBuilder:
    """Shapes the deltas of one message; see `server.openai.respond.Builder`."""

    def __init__(self, request: AdmittedRequest) -> None:
        shape = request.prepared.shape
        assert isinstance(shape, ChatShape)
        self._request = request
        self._reader = shape.reader(0)
        self._state = ChoiceState(keep_text=not request.prepared.answer.streams)
        self._open: str | None = None
        self._num_blocks = 0
        self._has_calls = False

    @property
    def choices(self) -> Sequence[ChoiceState]:
        """What the engine has sent so far: of one choice."""
        return (self._state,)

    def add(self, index: int, delta: Delta) -> None:
        """Adds a delta of a message in one piece."""
        self._state.add(delta)

    def body(self) -> bytes:
        """The message, encoded. Raises `RuntimeError` if it has not finished."""
        state = self._state
        reason = state.reason_of_end(self._request.id)
        everything = Delta(state.text, tuple(state.token_ids), finish_reason=reason)
        assistant = self._reader.whole(everything)
        content: list[dict[str, Any]] = []
        if assistant.reasoning:
            content.append({"type": "thinking", "thinking": assistant.reasoning, "signature": ""})
        if assistant.text:
            content.append({"type": "text", "text": assistant.text})
        is_complete = reason is not FinishReason.LENGTH
        for call in assistant.calls:
            block = {"type": "tool_use", "id": call.id, "name": call.name}
            content.append({**block, "input": _input(call.arguments, is_complete=is_complete)})
        self._has_calls = bool(assistant.calls)
        message = self._message(content) | self._stop(reason)
        message["usage"] = self._usage()
        message["metrics"] = response_metrics(self._request, self.choices)
        return json_text(message).encode()

    def events(self, index: int, delta: Delta) -> Sequence[bytes]:
        """The encoded events of a delta; none while a character is incomplete."""
        begins = self._state.begun_at is None
        self._state.add(delta)
        events: list[bytes] = []
        if begins:
            message = {**self._message([]), "stop_reason": None, "stop_sequence": None}
            message["usage"] = {**self._usage(), "output_tokens": 0}
            events.append(_event("message_start", {"message": message}))
        for piece in self._reader.read(delta):
            events += self._piece_events(piece)
        return events

    def last_events(self) -> Sequence[bytes]:
        """The encoded end of a stream. Raises `RuntimeError` if it has not finished."""
        reason = self._state.reason_of_end(self._request.id)
        end_fields = {
            "delta": self._stop(reason),
            "usage": self._usage(),
            "metrics": response_metrics(self._request, self.choices),
        }
        return (*self._close(), _event("message_delta", end_fields), _event("message_stop", {}))

    def failure(self, error: ApiError) -> bytes:
        """The encoded end of a stream that fails."""
        return f"event: error\ndata: {json_text(anthropic_error(error))}\n\n".encode()

    def _piece_events(self, piece: Piece) -> list[bytes]:
        match piece:
            case TextPiece():
                block = {"type": "text", "text": ""}
                delta = {"type": "text_delta", "text": piece.text}
                begin = [] if self._open == "text" else self._begin(block)
            case ReasoningPiece():
                block = {"type": "thinking", "thinking": "", "signature": ""}
                delta = {"type": "thinking_delta", "thinking": piece.text}
                begin = [] if self._open == "thinking" else self._begin(block)
            case CallBegin():
                self._has_calls = True
                block = {"type": "tool_use", "id": piece.id, "name": piece.name}
                return self._begin({**block, "input": {}})
            case CallArguments():
                begin, delta = [], {"type": "input_json_delta", "partial_json": piece.text}
        fields = {"index": self._num_blocks - 1, "delta": delta}
        return [*begin, _event("content_block_delta", fields)]

    def _begin(self, block: dict[str, Any]) -> list[bytes]:
        events = self._close()
        self._open = block["type"]
        fields = {"index": self._num_blocks, "content_block": block}
        self._num_blocks += 1
        return [*events, _event("content_block_start", fields)]

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        self._open = None
        return [_event("content_block_stop", {"index": self._num_blocks - 1})]

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._request.id,
            "type": "message",
            "role": "assistant",
            "model": self._request.prepared.checked.model_name,
            "content": content,
        }

    def _stop(self, reason: FinishReason) -> dict[str, Any]:
        if reason is FinishReason.LENGTH:
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        stop = self._state.stop_reason
        # A named call has the finish reason `stop` at OpenAI.
        is_named = isinstance(self._reader, NamedReader) and not isinstance(stop, str)
        if self._has_calls and (is_named or self._reader.finish_reason(reason) == "tool_calls"):
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if isinstance(stop, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        return {"stop_reason": "end_turn", "stop_sequence": None}

    def _usage(self) -> dict[str, Any]:
        figures = usage(self._request, self.choices)
        cached = num_cached_tokens(self._request, self.choices)
        details = figures["completion_tokens_details"]
        return {
            "input_tokens": figures["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": figures["completion_tokens"],
            "num_draft_tokens": details["num_draft_tokens"],
            "num_accepted_draft_tokens": details["num_accepted_draft_tokens"],
        }


def _event(kind: str, fields: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json_text({'type': kind, **fields})}\n\n".encode()


def _input(arguments: str, *, is_complete: bool) -> dict[str, Any]:
    """A call's arguments as an object.

    Of a call that a limit of tokens cut, it is what the model wrote of it. Arguments that are not a
    JSON object are not lost: they are the object's only entry, `arguments`.
    """
    try:
        if is_complete:
            value = json.loads(arguments)
        else:
            value = from_json(arguments, allow_partial="trailing-strings")
        if isinstance(value, dict):
            json_text(value)  # refuses what JSON does not have, such as infinity
            return value
    except (ValueError, RecursionError):
        pass
    return {"arguments": arguments} if arguments else {}
