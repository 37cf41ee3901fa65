"""A request's deltas -> the response in one piece, or the events of a stream. Pure shaping."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine_adapter.seam.types import Delta
from server.errors import ApiError
from server.http.event_stream import (
    DONE,
    TEXT_PLACEHOLDER,
    error_events,
    event,
    json_string,
    json_text,
)
from server.openai.choices import ChoiceState
from server.openai.request import AdmittedRequest
from server.openai.token_fields import TokenFields
from server.openai.usage import choice_statistics, response_metrics, usage


class ResponseBuilder:
    """Shapes the deltas of one admitted request.

    See `server.openai.respond.Builder`.
    """

    def __init__(self, request: AdmittedRequest) -> None:
        answer = request.prepared.answer
        self._request = request
        self._shape = request.prepared.shape
        self._include_usage = answer.has_usage
        self._continuous_usage = answer.usage_so_far
        self._continuous_spec = answer.statistics_so_far
        self._tokens = TokenFields(request.prepared)
        indices = range(len(request.engine_requests))
        self._choices = [ChoiceState(keep_text=not answer.streams) for _ in indices]
        self._encoded = [b""] * len(indices)
        self._logprobs: defaultdict[int, list[bytes]] = defaultdict(list)
        # Then nothing but the text differs from one ordinary chunk to the next.
        self._has_frames = (
            answer.streams
            and self._shape.is_plain
            and not self._shape.echoes_prompt
            and not (self._continuous_usage or self._continuous_spec or self._tokens.returns_ids)
        )
        self._frames = [self._frame(i) for i in indices] if self._has_frames else []

    @property
    def choices(self) -> Sequence[ChoiceState]:
        """What the engine has sent so far."""
        return self._choices

    def add(self, index: int, delta: Delta) -> None:
        """Adds a delta of choice `index`."""
        choice, delta = self._choices[index], self._shape.visible(delta)
        logprobs = self._shape.encoded_logprobs(delta)
        if logprobs is not None:
            delta = replace(delta, logprobs=None)
        if logprobs:
            self._logprobs[index].append(logprobs)
        choice.add(delta)
        if delta.finish_reason is None:
            return
        # Now: at the end all choices could take seconds, in which every other request waits.
        fields = (
            self._shape.whole_choice(index, choice)
            | self._tokens.of_choice(index, choice)
            | self._finish_fields(index)
        )
        self._encoded[index] = self._encode(index, fields, logprobs is not None)
        choice.logprobs.clear()
        if self._shape.has_prompts:
            choice.prompt_logprobs = None

    def _encode(self, index: int, fields: dict[str, Any], has_logprobs: bool) -> bytes:
        """A whole choice, with the log probabilities that were encoded when they came."""
        if not has_logprobs:
            return json_text(fields).encode()
        del fields["logprobs"]
        head, content = json_text(fields)[:-1].encode(), b",".join(self._logprobs.pop(index, ()))
        return b'%b,"logprobs":{"content":[%b],"refusal":null}}' % (head, content)

    def body(self) -> bytes:
        """The response in one piece, encoded. Raises `RuntimeError` if a choice has not ended."""
        self._check_finished()
        head = self._head(self._shape.object_type)
        tail = {
            **self._tokens.of_body(self._choices),
            "usage": usage(self._request, self._choices),
            "metrics": response_metrics(self._request, self._choices),
        }
        return b'%b,"choices":[%b],%b' % (
            json_text(head)[:-1].encode(),
            b",".join(self._encoded),
            json_text(tail)[1:].encode(),
        )

    def events(self, index: int, delta: Delta) -> Sequence[bytes]:
        """The encoded events of a delta of choice `index`; none while a character is incomplete."""
        choice = self._choices[index]
        is_first = choice.begun_at is None
        is_ordinary = delta.finish_reason is None and delta.logprobs is None and not is_first
        if is_ordinary and self._has_frames:
            choice.add(delta)
            if not delta.text:
                return ()
            head, tail = self._frames[index]
            return (head + json_string(delta.text) + tail,)
        delta = self._shape.visible(delta)
        choice.add(delta)
        chunks = self._chunk_events(index, delta, is_first)
        if is_first and (role := self._shape.role_chunk(index)) is not None:
            return (event(self._chunk([role]) | self._tokens.of_first_chunk()), *chunks)
        return chunks

    def last_events(self) -> Sequence[bytes]:
        """The encoded end of a stream. Raises `RuntimeError` if a choice has not finished."""
        self._check_finished()
        if not self._include_usage:
            return (DONE,)
        chunk = self._chunk([])
        chunk["usage"] = usage(self._request, self._choices)
        chunk["metrics"] = response_metrics(self._request, self._choices)
        return (event(chunk), DONE)

    def failure(self, error: ApiError) -> bytes:
        """The encoded end of a stream that fails; unfinished choices get no finish reason."""
        return error_events(error)

    def _check_finished(self) -> None:
        for choice in self._choices:
            choice.reason_of_end(self._request.id)

    def _chunk_events(self, index: int, delta: Delta, is_first: bool) -> Sequence[bytes]:
        echo = is_first and self._shape.echoes_prompt
        is_last = delta.finish_reason is not None
        self._tokens.hold(index, delta)
        is_ordinary = not is_last and delta.logprobs is None and not echo
        if is_ordinary and self._shape.is_plain and not delta.text:
            return ()
        choices = self._shape.chunk_choices(index, delta, echo=echo)
        choices = self._tokens.attach(index, choices)
        if self._continuous_spec:
            statistics = choice_statistics(self._request, self._choices[index])
            choices = [choice | {"speculative_decoding": statistics} for choice in choices]
        if not is_last:
            return tuple(event(self._chunk([choice])) for choice in choices)
        *more_choices, last_choice = choices
        return (
            *(event(self._chunk([choice])) for choice in more_choices),
            event(self._last_chunk(last_choice | self._finish_fields(index))),
        )

    def _last_chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        """The chunk that ends a choice; that of the last choice to end has the metrics."""
        chunk = self._chunk([choice])
        have_all_ended = all(choice.finish_reason is not None for choice in self._choices)
        if have_all_ended and not self._include_usage:
            chunk["metrics"] = response_metrics(self._request, self._choices)
        return chunk

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        """The bytes before and after the text of an ordinary chunk, encoded once."""
        (choice,) = self._shape.chunk_choices(index, Delta(text=TEXT_PLACEHOLDER), echo=False)
        head, tail = event(self._chunk([choice])).split(json_string(TEXT_PLACEHOLDER))
        return head, tail

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = {**self._head(self._shape.chunk_object_type), "choices": choices}
        if self._continuous_usage:
            chunk["usage"] = usage(self._request, self._choices)
        elif self._include_usage:
            chunk["usage"] = None
        return chunk

    def _head(self, object_type: str) -> dict[str, Any]:
        request = self._request
        return {
            "id": request.id,
            "object": object_type,
            "created": request.created,
            "model": request.prepared.checked.model_name,
            **self._shape.head_fields(request.id),
        }

    def _finish_fields(self, index: int) -> dict[str, Any]:
        """The fields of a choice that has finished."""
        choice = self._choices[index]
        return {
            "finish_reason": self._shape.finish_reason(index, choice.finish_reason),
            "stop_reason": choice.stop_reason,
            "speculative_decoding": choice_statistics(self._request, choice),
        }
