"""How `/v1/chat/completions` writes the assistant's message: whole, or as chunks of its pieces."""

from collections.abc import Sequence
from typing import Any

from engine_adapter.seam.types import Delta, FinishReason
from server.http.event_stream import json_text
from server.openai.choices import ChoiceShape, ChoiceState
from server.openai.logprobs import chat_logprobs
from server.openai.message_parts import (
    AssistantMessage,
    CallArguments,
    CallBegin,
    MessageReader,
    Piece,
    ReasoningPiece,
    TextPiece,
)


class ChatShape(ChoiceShape):
    """The choices of a chat.

    Args:
        num_top: alternatives per token; `None` sends no log probabilities.
        readers: one for each choice.
        tokens_as_ids: see `chat_logprobs`.
    """

    operation = "chat"
    object_type = "chat.completion"
    chunk_object_type = "chat.completion.chunk"

    def __init__(
        self,
        num_top: int | None,
        readers: Sequence[MessageReader],
        *,
        tokens_as_ids: bool = False,
    ) -> None:
        self._num_top = num_top
        self._tokens_as_ids = tokens_as_ids
        self._readers = readers
        self.is_plain = all(reader.is_plain for reader in readers)

    @classmethod
    def of_all(cls, shapes: Sequence["ChatShape"]) -> "ChatShape":
        """The choices of several chats with the same options, one chat after the other."""
        readers = [reader for shape in shapes for reader in shape._readers]
        joined = cls(shapes[0]._num_top, readers, tokens_as_ids=shapes[0]._tokens_as_ids)
        joined.has_prompts = True
        return joined

    def reader(self, index: int) -> MessageReader:
        """The reader of choice `index`, for another format of the same message."""
        return self._readers[index]

    def role_chunk(self, index: int) -> dict[str, Any]:
        """The chunk that opens the assistant's message."""
        content = "" if self._readers[index].has_text else None
        return _chunk(index, {"role": "assistant", "content": content})

    def chunk_choices(self, index: int, delta: Delta, *, echo: bool) -> Sequence[dict[str, Any]]:
        """One choice for each piece, because clients merge only one fragment of a call a chunk.

        A chat has no echo. The log probabilities of the delta's tokens are in the first choice.
        """
        pieces = self._readers[index].read(delta)
        parts = [_delta(piece) for piece in pieces]
        ends = delta.finish_reason is not None
        has_logprobs = self._num_top is not None and delta.logprobs is not None
        if ends and not (pieces and isinstance(pieces[-1], TextPiece)):
            parts.append({})
        elif has_logprobs and not parts:
            parts.append({"content": ""} if self.is_plain else {})
        choices = [_chunk(index, part) for part in parts]
        if has_logprobs and self._num_top is not None:
            choices[0]["logprobs"] = self._logprobs(delta, self._num_top)
        return choices

    def encoded_logprobs(self, delta: Delta) -> bytes | None:
        """The entries of `logprobs.content`, with commas between them."""
        if self._num_top is None:
            return None
        return json_text(self._logprobs(delta, self._num_top)["content"])[1:-1].encode()

    def _logprobs(self, delta: Delta, num_top: int) -> dict[str, Any]:
        return chat_logprobs(delta.logprobs or (), num_top, as_ids=self._tokens_as_ids)

    def whole_choice(self, index: int, state: ChoiceState) -> dict[str, Any]:
        """The whole message. Its log probabilities are in `encoded_logprobs`."""
        everything = Delta(state.text, tuple(state.token_ids), finish_reason=state.finish_reason)
        message = _message(self._readers[index].whole(everything))
        return {"index": index, "message": message, "logprobs": None}

    def finish_reason(self, index: int, reason: FinishReason | None) -> str | None:
        """`tool_calls` if the choice ended with complete calls."""
        return None if reason is None else self._readers[index].finish_reason(reason)

    @property
    def num_reasoning_tokens(self) -> int | None:
        """Those of all choices; `None` if reasoning is not told apart."""
        counts = [reader.num_reasoning_tokens for reader in self._readers]
        told_apart = [count for count in counts if count is not None]
        return sum(told_apart) if told_apart else None


def _chunk(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _delta(piece: Piece) -> dict[str, Any]:
    """The `delta` of a chunk."""
    match piece:
        case TextPiece():
            return {"content": piece.text}
        case ReasoningPiece():
            return _reasoning(piece.text)
        case CallBegin():
            function = {"name": piece.name, "arguments": ""}
            call = {"index": piece.index, "id": piece.id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case CallArguments():
            function = {"arguments": piece.text}
            return {"tool_calls": [{"index": piece.index, "function": function}]}


def _reasoning(text: str) -> dict[str, str]:
    """The name that most clients read, and the one that vLLM sends."""
    return {"reasoning_content": text, "reasoning": text}


def _message(message: AssistantMessage) -> dict[str, Any]:
    """The `message` of a choice."""
    has_no_text = not message.text and (message.calls or message.reasoning)
    shaped: dict[str, Any] = {
        "role": "assistant",
        "content": None if has_no_text else message.text,
        "refusal": None,
    }
    if message.reasoning:
        shaped |= _reasoning(message.reasoning)
    if message.calls:
        shaped["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.calls
        ]
    return shaped
