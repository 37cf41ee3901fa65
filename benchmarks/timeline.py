"""Arrival times of a stream's tokens, and the decoding speed without prefill."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

DATA = b"data: "


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


def read_events(events: Sequence[tuple[float, bytes]]) -> Timeline:
    """Builds the timeline of a stream requested with `continuous_usage_stats`.

    Args:
        events: arrival in seconds and `data:` line of each event.

    Raises:
        RuntimeError: the server reported an error, or the stream had no tokens.
    """
    times, tokens, seen = [], [], 0
    tokens_per_step = None
    for arrived, line in events:
        if line == b"data: [DONE]":
            continue
        chunk: dict[str, Any] = json.loads(line.removeprefix(DATA))
        if "error" in chunk:
            raise RuntimeError(f"the stream failed: {chunk['error']}")
        emitted = (chunk.get("usage") or {}).get("completion_tokens", 0)
        if emitted > seen:
            seen = emitted
            times.append(arrived)
            tokens.append(emitted)
        if metrics := chunk.get("metrics"):
            tokens_per_step = metrics["speculative_decoding"]["mean_tokens_per_step"]
    if not times:
        raise RuntimeError("the stream had no tokens")
    return Timeline(np.array(times), np.array(tokens), tokens_per_step)


def decoding(streams: Sequence[Timeline]) -> Decoding:
    """How fast the streams of one burst decoded.

    Each stream is measured between its own events inside the common interval, so that no part of
    a step is counted. Raises `ValueError` if a stream has no step after all have begun.
    """
    start = max(stream.times_s[0] for stream in streams)
    begins = [int(np.searchsorted(stream.times_s, start)) for stream in streams]
    if any(begin + 1 >= len(s.times_s) for begin, s in zip(begins, streams, strict=True)):
        raise ValueError("a stream ended before all others had begun: use more tokens per answer")
    end = max(
        min(stream.times_s[-1] for stream in streams),
        # Late enough that every stream has one step after `start`, even if another has ended.
        max(s.times_s[begin + 1] for begin, s in zip(begins, streams, strict=True)),
    )
    rates, tokens, steps, seconds = [], 0, 0.0, 0.0
    for stream, begin in zip(streams, begins, strict=True):
        last = int(np.searchsorted(stream.times_s, end, side="right")) - 1
        gained = int(stream.tokens[last] - stream.tokens[begin])
        took = float(stream.times_s[last] - stream.times_s[begin])
        rates.append(gained / took)
        tokens, seconds = tokens + gained, seconds + took
        steps += gained / stream.tokens_per_step if stream.tokens_per_step else last - begin
    return Decoding(float(end - start), sum(rates), 1e3 * seconds / steps, tokens / steps)
