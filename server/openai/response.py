"""A job's answer, in one piece or as events. What the two endpoints write alike."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing
from typing import Any

from engine_adapter.types import Delta
from server.http.event_stream import DONE, event, json_text
from server.openai.request import Job, Prepared, admit, choose
from server.openai.streams import generate
from server.openai.usage import Tally, choice_statistics, metrics, usage
from server.state import State

_MARK = "\x00text\x00"
"""Stands for the text in a frame; JSON text of a model never holds it unescaped."""


class Answer(ABC):
    """A prepared request and the shape of its answer.

    `admit` it, take it `whole` or as `events`, and `close` it, in this order.
    Subclasses say how a choice looks; `kind` and `chunk_kind` are the `object` of the whole
    answer and of a chunk.
    """

    kind: str
    chunk_kind: str
    _echoing = False

    def __init__(self, state: State, prepared: Prepared) -> None:
        body = prepared.body
        self.job: Job
        self.streamed = bool(body.stream)
        self._state = state
        self._prepared = prepared
        self._include_usage = body.include_usage
        self._continuous_usage = body.continuous_usage
        self._tallies = [Tally(keep=not self.streamed) for _ in range(prepared.num_choices)]
        self._frames: list[tuple[bytes, bytes]] = []
        self._in_flight = ExitStack()

    def check_choice(self) -> None:
        """Raises `InvalidField` for a choice that admission would refuse."""
        choose(self._state, self._prepared.body)

    def admit(self) -> None:
        """Chooses who drafts; the request is in flight from here until `close`.

        Raises `InvalidField`.
        """
        self.job = admit(self._state, self._prepared)
        if self.streamed:
            self._frames = [self._frame(i) for i in range(len(self.job.requests))]
        choice, in_flight = self.job.choice, self._state.switcher.in_flight
        self._in_flight.enter_context(in_flight.admitted(choice.name, pinned=choice.params.pinned))

    def close(self) -> None:
        """The request has ended, however it did."""
        self._in_flight.close()

    async def whole(self) -> dict[str, Any]:
        """Runs the job and builds the answer in one piece. Cancelling aborts the job."""
        async with aclosing(generate(self._state, self.job)) as deltas:
            async for index, delta in deltas:
                self._tallies[index].add(self._seen(delta))
        self._check_ended()
        choices = [
            self._choice(index, tally) | self._ending(index)
            for index, tally in enumerate(self._tallies)
        ]
        return {
            **self._head(self.kind),
            "choices": choices,
            "usage": usage(self.job, self._tallies),
            "metrics": metrics(self.job, self._tallies),
        }

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Runs the job and yields encoded events. Closing aborts the job."""
        async with aclosing(generate(self._state, self.job)) as deltas:
            async for index, delta in deltas:
                for data in self._event(index, self._seen(delta)):
                    yield data
        self._check_ended()
        if self._include_usage:
            chunk = self._chunk([])
            chunk["usage"] = usage(self.job, self._tallies)
            yield event(chunk | {"metrics": metrics(self.job, self._tallies)})
        yield DONE

    def _check_ended(self) -> None:
        """Raises where the engine broke its promise: a reason to finish is never made up."""
        if any(tally.finish_reason is None for tally in self._tallies):
            raise RuntimeError(f"{self.job.id}: a sequence ended without a finish_reason")

    def _event(self, index: int, delta: Delta) -> Sequence[bytes]:
        """The events of one delta; none while a character is incomplete."""
        tally = self._tallies[index]
        first = not tally.begun
        tally.add(delta)
        opening = self._opening(index) if first else None
        part = self._event_of_part(index, delta, first)
        return part if opening is None else (event(self._chunk([opening])), *part)

    def _event_of_part(self, index: int, delta: Delta, first: bool) -> Sequence[bytes]:
        echo = first and self._echoing
        if delta.finish_reason is None and delta.logprobs is None and not echo:
            if not delta.text:
                return ()
            if not self._continuous_usage:
                before, after = self._frames[index]
                return (before + json_text(delta.text).encode() + after,)
        part = self._part(index, delta, echo=echo)
        if delta.finish_reason is None:
            return (event(self._chunk([part])),)
        chunk = self._chunk([part | self._ending(index)])
        last = all(tally.finish_reason is not None for tally in self._tallies)
        if last and not self._include_usage:
            chunk["metrics"] = metrics(self.job, self._tallies)
        return (event(chunk),)

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and after the text of an ordinary chunk, encoded once."""
        whole = event(self._chunk([self._part(index, Delta(text=_MARK), echo=False)]))
        before, after = whole.split(json_text(_MARK).encode())
        return before, after

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = {**self._head(self.chunk_kind), "choices": choices}
        if self._continuous_usage:
            chunk["usage"] = usage(self.job, self._tallies)
        elif self._include_usage:
            chunk["usage"] = None
        return chunk

    def _head(self, kind: str) -> dict[str, Any]:
        job = self.job
        return {"id": job.id, "object": kind, "created": job.created, "model": job.accepted.model}

    def _ending(self, index: int) -> dict[str, Any]:
        """What a choice says once it has ended."""
        tally = self._tallies[index]
        return {
            "finish_reason": tally.finish_reason,
            "stop_reason": tally.stop_reason,
            "speculative_decoding": choice_statistics(self.job, tally),
        }

    def _seen(self, delta: Delta) -> Delta:
        """The delta as the client is to see it."""
        return delta

    def _opening(self, index: int) -> dict[str, Any] | None:
        """The choice of the chunk that comes before a choice's first text, if there is one."""
        return None

    @abstractmethod
    def _part(self, index: int, delta: Delta, *, echo: bool) -> dict[str, Any]:
        """The choice of a chunk; with `echo` it begins with the prompt."""

    @abstractmethod
    def _choice(self, index: int, tally: Tally) -> dict[str, Any]:
        """The choice of the answer in one piece."""
