"""Arrival times of a stream's tokens, and the decoding speed without prefill."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

DONE = b"[DONE]"
TEXTS = ("content", "text", "reasoning_content", "reasoning", "refusal", "tool_calls")
"""Fields of a choice or its delta that hold what the model has written."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """One answer.

    Attributes:
        times_s: float64 [E], arrival of each event's tokens, on one clock for all streams.
        tokens: int64 [E], tokens emitted up to and including each event; increasing.
        tokens_per_step: mean of the decode steps, if the server reports it. Without it each event
            counts as one step, although a late reader may get the tokens of two steps as one.
    """

    times_s: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.int64]
    tokens_per_step: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A stream as any OpenAI-compatible server sends it, possibly cut off.

    Attributes:
        times_s: float64 [E], arrival of each event with tokens.
        tokens: int64 [E], tokens up to and including each event; not decreasing.
        speculation: Specgate's figures of the answer, `metrics.speculative_decoding`.
        error: what the server reported, or why a chunk could not be read.
        is_finished: the stream has its end, or a reason for it.
    """

    times_s: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.int64]
    speculation: Mapping[str, Any] | None
    error: str | None
    is_finished: bool


@dataclass(frozen=True, slots=True)
class Decoding:
    """The speed of concurrent streams, from when all have begun until the first has ended.

    Attributes:
        seconds: the length of that interval.
        tokens_per_s: sum over all streams.
        step_ms: mean time between two steps of a stream.
        tokens_per_step: mean of one stream.
    """

    seconds: float
    tokens_per_s: float
    step_ms: float
    tokens_per_step: float


def parse_stream(events: Sequence[tuple[float, bytes]]) -> Answer:
    """Reads the chunks of a streamed chat or completion, of any OpenAI-compatible server.

    With `continuous_usage_stats` the usage of each chunk counts the tokens. Otherwise each chunk
    with text gets an equal share of the tokens in the final usage, or one token without any usage.

    Args:
        events: arrival in seconds and content of each `data:` line.
    """
    counted: list[tuple[float, int]] = []
    texts: list[float] = []
    speculation: Mapping[str, Any] | None = None
    error, is_finished = None, False
    for arrived, line in events:
        if line == DONE:
            is_finished = True
            continue
        try:
            chunk: dict[str, Any] = json.loads(line)
            choices = chunk.get("choices") or []
        except (ValueError, AttributeError):
            error = f"a chunk is not a JSON object: {line[:200].decode(errors='replace')}"
            break
        if "error" in chunk:
            error = str(chunk["error"])[:500]
            break
        if any(_has_text(choice) for choice in choices):
            texts.append(arrived)
        emitted = (chunk.get("usage") or {}).get("completion_tokens", 0)
        if emitted > (counted[-1][1] if counted else 0):
            counted.append((arrived, emitted))
        is_finished = is_finished or any(choice.get("finish_reason") for choice in choices)
        speculation = (chunk.get("metrics") or {}).get("speculative_decoding") or speculation
    if texts and len(counted) <= 1:
        total = counted[0][1] if counted else len(texts)
        shares = np.linspace(total / len(texts), total, len(texts))
        counted = list(zip(texts, np.ceil(shares - 1e-9).astype(int).tolist(), strict=True))
    times, tokens = zip(*counted, strict=True) if counted else ((), ())
    return Answer(
        np.array(times, float), np.array(tokens, np.int64), speculation, error, is_finished
    )


def _has_text(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta") or choice
    return any(delta.get(name) for name in TEXTS)


def read_events(events: Sequence[tuple[float, bytes]]) -> Timeline:
    """Builds the timeline of a stream.

    Args:
        events: as `parse_stream` takes them.

    Raises:
        RuntimeError: the server reported an error, or the stream had no tokens.
    """
    answer = parse_stream(events)
    if answer.error is not None:
        raise RuntimeError(f"the stream failed: {answer.error}")
    if not answer.times_s.size:
        raise RuntimeError("the stream had no tokens")
    figures = answer.speculation
    return Timeline(
        answer.times_s, answer.tokens, figures["mean_tokens_per_step"] if figures else None
    )


def decoding(streams: Sequence[Timeline]) -> Decoding:
    """How fast the streams of one burst decoded.

    Each stream is measured between its own events inside the common interval, so that no part of
    a step is counted. Raises `ValueError` if a stream has no step after all have begun.
    """
    start = max(stream.times_s[0] for stream in streams)
    begins = [_first_moment(stream, start) for stream in streams]
    if any(begin + 1 >= len(s.times_s) for begin, s in zip(begins, streams, strict=True)):
        raise ValueError("a stream ended before all others had begun: use more tokens per answer")
    end = max(
        min(stream.times_s[-1] for stream in streams),
        # Late enough that every stream has one step after `start`, even if another has ended.
        max(s.times_s[begin + 1] for begin, s in zip(begins, streams, strict=True)),
    )
    rates, tokens, steps, seconds = [], 0, 0.0, 0.0
    for stream, begin in zip(streams, begins, strict=True):
        end_event = int(np.searchsorted(stream.times_s, end, side="right")) - 1
        gained = int(stream.tokens[end_event] - stream.tokens[begin])
        took = float(stream.times_s[end_event] - stream.times_s[begin])
        rates.append(gained / took)
        tokens, seconds = tokens + gained, seconds + took
        steps += gained / stream.tokens_per_step if stream.tokens_per_step else end_event - begin
    return Decoding(float(end - start), sum(rates), 1e3 * seconds / steps, tokens / steps)


def _first_moment(stream: Timeline, start: float) -> int:
    """The event from which a stream is measured.

    Events that are read together have one time. The last of them counts, so that the next one is
    later.
    """
    times_s = stream.times_s
    index = int(np.searchsorted(times_s, start))
    if index == len(times_s):
        return index
    return int(np.searchsorted(times_s, times_s[index], side="right")) - 1
