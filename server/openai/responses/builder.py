"""A response's deltas -> the response in one piece, or the events of its stream."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from engine_adapter.seam.types import Delta, FinishReason
from server.errors import ApiError
from server.http.event_stream import json_text
from server.openai.choices import ChoiceState
from server.openai.request import AdmittedRequest
from server.openai.responses.input_items import Item
from server.openai.responses.open_items import EventWriter
from server.openai.responses.output import Output
from server.openai.responses.prepare import PreparedResponse
from server.openai.responses.response_object import (
    ResponseObject,
    failed_object,
    response_object,
)
from server.openai.usage import choice_statistics, response_metrics, usage


class ResponsesBuilder:
    """Shapes the deltas of one response; see `server.openai.respond.Builder`.

    Args:
        keep: is called with every response that has ended, also with an error, before its last
            event or its body is sent.
        events: has the events that open the stream; `None` writes them with the first delta.
    """

    def __init__(
        self,
        keep: Callable[[ResponseObject], None],
        response: PreparedResponse,
        request: AdmittedRequest,
        events: EventWriter | None = None,
    ) -> None:
        self._keep = keep
        self._is_opened = events is not None
        self._response = response
        self._request = request
        answer, num_top = response.request.answer, response.num_top_logprobs
        self._streams = answer.streams
        self._continuous_spec = answer.statistics_so_far
        self._reader = response.shape.reader(0)
        # A whole message does not tell which log probabilities are those of its text.
        by_piece = num_top is not None and not self._reader.is_plain
        # One in the background can be cancelled, and then shows what it has.
        self._reads_pieces = self._streams or by_piece or self._is_opened
        self._state = ChoiceState(keep_text=not self._reads_pieces)
        self._events = events or EventWriter(silent=not self._streams)
        self._output = Output(self._events, num_top, self._response.tools)

    @property
    def choices(self) -> Sequence[ChoiceState]:
        """What the engine has sent so far: of one choice."""
        return (self._state,)

    def add(self, index: int, delta: Delta) -> None:
        """Adds a delta."""
        self._state.add(delta)
        if self._reads_pieces:
            self._output.add(self._reader.read(delta), delta.logprobs, self._more())

    def body(self) -> bytes:
        """The response in one piece, encoded. Raises `RuntimeError` if it has not finished."""
        state = self._state
        reason = state.reason_of_end(self._request.id)
        if not self._reads_pieces:
            everything = Delta(state.text, tuple(state.token_ids), finish_reason=reason)
            self._output.add_whole(self._reader.whole(everything), state.logprobs)
        return json_text(self._finished(reason)).encode()

    def events(self, index: int, delta: Delta) -> Sequence[bytes]:
        """The encoded events of a delta; none while a character is incomplete."""
        if self._state.begun_at is None and not self._is_opened:
            for kind in ("response.created", "response.in_progress"):
                opened = response_object(self._response, "in_progress", [])
                self._events.write(kind, {"response": opened})
        self.add(index, delta)
        return self._events.take()

    def last_events(self) -> Sequence[bytes]:
        """The encoded end of a stream. Raises `RuntimeError` if it has not finished."""
        response = self._finished(self._state.reason_of_end(self._request.id))
        self._events.write(f"response.{response['status']}", {"response": response})
        return self._events.take()

    def failure(self, error: ApiError) -> bytes:
        """The encoded end of a stream that fails: a response that has begun ends as failed."""
        if self._state.begun_at is None:
            fields = {"code": error.code, "message": error.message, "param": error.param}
            self._events.write("error", fields)
            return b"".join(self._events.take())
        failed = failed_object(self._response, error, self.output_so_far())
        self._keep(failed)
        self._events.write("response.failed", {"response": failed})
        return b"".join(self._events.take())

    def output_so_far(self) -> list[Item]:
        """The items of a response that ends before its time."""
        return self._output.so_far()

    def _more(self) -> dict[str, Any] | None:
        """The fields that an event with text has besides."""
        if not self._continuous_spec:
            return None
        return {"speculative_decoding": choice_statistics(self._request, self._state)}

    def _finished(self, reason: FinishReason) -> dict[str, Any]:
        """The response, complete or cut off by a limit of tokens. It is stored."""
        complete = reason is not FinishReason.LENGTH
        output = self._output.end(complete=complete)
        status = "completed" if complete else "incomplete"
        response = response_object(self._response, status, output)
        if complete:
            response["completed_at"] = int(time.time())
        else:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        response["usage"] = response_usage(self._request, [self._state])
        response["metrics"] = response_metrics(self._request, [self._state])
        self._keep(response)
        return response


def response_usage(request: AdmittedRequest, choices: Sequence[ChoiceState]) -> dict[str, Any]:
    """The `usage` of a response. What the prefix cache keeps of a prompt is not counted."""
    figures = usage(request, choices)
    details = figures["completion_tokens_details"]
    return {
        "input_tokens": figures["prompt_tokens"],
        "input_tokens_details": {"cache_write_tokens": 0, **figures["prompt_tokens_details"]},
        "output_tokens": figures["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0, **details},
        "total_tokens": figures["total_tokens"],
    }
