"""Workloads: which requests of a trace run, in which order, and how many at a time."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

import numpy as np

from benchmarks.simulation.trace import Trace, TracedRequest

RAMP = (1, 2, 4, 8, 16, 32, 64, 32, 16, 8, 4, 2, 1)
"""Streams of the phases of `ramp`."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Requests that run one after the other, at most `streams` at a time.

    A phase begins when all requests of the one before have begun. Then rows above the new limit
    run to their end.

    Attributes:
        name: for reports.
        requests: in order. Those with an `arrival_s` do not begin before it, counted from the
            beginning of the phase.
    """

    name: str
    streams: int
    requests: tuple[TracedRequest, ...]

    @property
    def output_tokens(self) -> int:
        """The tokens of all answers."""
        return sum(request.output_tokens for request in self.requests)


Workload = Sequence[Phase]


def quote(trace: Trace, size: int, streams: int, seed: int) -> Workload:
    """Requests whose answers repeat a passage of the prompt."""
    return [_phase("quote", trace, ("quote",), size, streams, seed)]


def free(trace: Trace, size: int, streams: int, seed: int) -> Workload:
    """Requests whose answers are new text."""
    return [_phase("free", trace, ("free",), size, streams, seed)]


def rag(trace: Trace, size: int, streams: int, seed: int) -> Workload:
    """Quoting and free requests in turn, at random times (Poisson) that keep `streams` busy."""
    quotes = _drawn(trace, "quote", size, seed)
    frees = _drawn(trace, "free", size, seed)
    requests = [request for pair in zip(quotes, frees, strict=True) for request in pair][:size]
    mean_s = sum(_plain_seconds(trace, request) for request in requests) / len(requests)
    gaps = np.random.default_rng(seed).exponential(mean_s / (0.7 * streams), len(requests))
    timed = (
        replace(each, arrival_s=float(arrival_s))
        for each, arrival_s in zip(requests, gaps.cumsum(), strict=True)
    )
    return [Phase("rag", max(2 * streams, streams + 2), tuple(timed))]


def mixed(trace: Trace, size: int, streams: int, seed: int) -> Workload:
    """All requests of the trace in random order."""
    labels = tuple(dict.fromkeys(request.label for request in trace.requests))
    return [_phase("mixed", trace, labels, size, streams, seed)]


def shift(trace: Trace, size: int, streams: int, seed: int) -> Workload:
    """Quotes, then free text, then quotes."""
    return [
        _phase(label, trace, (label,), size, streams, seed + number)
        for number, label in enumerate(("quote", "free", "quote"))
    ]


def ramp(trace: Trace, size: int, streams: int, seed: int) -> Workload:
    """All labels, with 1 to 64 streams and back; `streams` is ignored."""
    labels = tuple(dict.fromkeys(request.label for request in trace.requests))
    return [
        _phase(f"{n} streams", trace, labels, max(size // 8, 2 * n), n, seed + number)
        for number, n in enumerate(RAMP)
    ]


def random_tokens(trace: Trace, size: int, streams: int, seed: int) -> Workload:
    """No draft is ever accepted."""
    phase = mixed(trace, size, streams, seed)[0]
    rejected = tuple(
        replace(request, accepted=np.zeros_like(request.accepted)) for request in phase.requests
    )
    return [replace(phase, name="random", requests=rejected)]


WORKLOADS: Mapping[str, Callable[[Trace, int, int, int], Workload]] = {
    "quote": quote,
    "free": free,
    "rag": rag,
    "mixed": mixed,
    "shift": shift,
    "ramp": ramp,
    "random": random_tokens,
}
"""Every workload, from the trace, the number of requests per phase, the streams and a seed."""


def only(workload: Workload, label: str) -> Workload:
    """The workload without the requests of other labels; phases without any are left out."""
    phases = (
        replace(
            phase, requests=tuple(request for request in phase.requests if request.label == label)
        )
        for phase in workload
    )
    return [phase for phase in phases if phase.requests]


def _phase(
    name: str, trace: Trace, labels: Sequence[str], size: int, streams: int, seed: int
) -> Phase:
    by_label = [_drawn(trace, label, size, seed) for label in labels]
    if len(by_label) == 1:
        return Phase(name, streams, tuple(by_label[0]))
    order = random.Random(seed)
    return Phase(name, streams, tuple(order.choice(by_label).pop() for _ in range(size)))


def _drawn(trace: Trace, label: str, size: int, seed: int) -> list[TracedRequest]:
    """Requests with the label, each as often as any other; raises `ValueError` without any."""
    requests = [request for request in trace.requests if request.label == label]
    if not requests:
        raise ValueError(f"the trace has no requests with the label {label!r}")
    return list(islice(_shuffled(requests, seed), size))


def _shuffled(requests: Sequence[TracedRequest], seed: int) -> Iterator[TracedRequest]:
    """All requests in random order, again and again."""
    order = random.Random(seed)
    for _ in cycle((None,)):
        yield from order.sample(requests, len(requests))


def _plain_seconds(trace: Trace, request: TracedRequest) -> float:
    """The time that plain decoding of the request alone takes."""
    return request.output_tokens * trace.costs.target.seconds(1, request.prompt_tokens)
