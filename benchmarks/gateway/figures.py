"""From streams and CPU seconds to the figures of a side."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.gateway.client import Stream
from benchmarks.gateway.recording import RecordedStream
from benchmarks.gateway.sides import Answer
from benchmarks.load.figures import Distribution, distribution


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time of a side for one kind of answer, one entry for each round.

    Attributes:
        request_us: of a request whose answer is one token.
        event_us: of each further event.
        stream_us: of a whole stream.
    """

    side: str
    answer: Answer
    request_us: Sequence[float]
    event_us: Sequence[float]
    stream_us: Sequence[float]


@dataclass(frozen=True, slots=True)
class Latency:
    """How late the events of a side come under a load.

    Attributes:
        requests: sent, and answered whole.
        first: from the request to its first event, the wait for the next step included.
        lag: of an event, from the step that it belongs to.
        busy: CPU seconds per second of the server.
        event_us: CPU time per event, that of the requests included.
        rss_mb: the server's resident memory at the end.
    """

    side: str
    requests: int
    first: Distribution
    lag: Distribution
    busy: float
    event_us: float
    rss_mb: float


def split_cost(
    side: str, answer: Answer, num_events: tuple[int, int], cpu_us: Sequence[tuple[float, float]]
) -> Cost:
    """Tells the request's cost from the events'.

    Args:
        num_events: of a short and of a long stream.
        cpu_us: per round, of a short and of a long stream.
    """
    short, long = num_events
    return Cost(
        side,
        answer,
        request_us=[short_us for short_us, _ in cpu_us],
        event_us=[(long_us - short_us) / (long - short) for short_us, long_us in cpu_us],
        stream_us=[long_us for _, long_us in cpu_us],
    )


def lags_s(stream: Stream, recording: RecordedStream, step_s: float) -> Sequence[float]:
    """How late each event is, in seconds, if the steps are the multiples of `step_s`.

    The first step is taken to be the latest that is before all events less their own steps.
    """
    steps = np.repeat(
        np.arange(len(recording.steps())), [len(events) for events in recording.steps()]
    )
    begun_s = np.asarray(stream.arrivals_s) - steps * step_s
    late: list[float] = (begun_s - np.floor(begun_s.min() / step_s) * step_s).tolist()
    return late


def latency(
    side: str,
    streams: Sequence[Stream],
    recording: RecordedStream,
    step_s: float,
    cpu_s: float,
    seconds: float,
    rss_bytes: int,
) -> Latency:
    """The figures of streams that were sent at the same load."""
    first_events = distribution(
        [1e3 * (stream.arrivals_s[0] - stream.sent_s) for stream in streams]
    )
    lag = distribution([1e3 * s for stream in streams for s in lags_s(stream, recording, step_s)])
    assert first_events is not None
    assert lag is not None
    num_events = sum(len(stream.arrivals_s) for stream in streams)
    return Latency(
        side=side,
        requests=len(streams),
        first=first_events,
        lag=lag,
        busy=cpu_s / seconds,
        event_us=1e6 * cpu_s / num_events,
        rss_mb=rss_bytes / 2**20,
    )
