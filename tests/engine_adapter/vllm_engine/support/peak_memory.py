"""The most memory that torch holds on the CPU while a block runs, as torch's profiler sees it."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.profiler import ProfilerActivity, profile


class Peak:
    """The peak of a block, once it has ended.

    Attributes:
        num_bytes: above what was held before.
    """

    num_bytes = 0


@contextmanager
def peak_memory() -> Iterator[Peak]:
    """A scope that is measured: every allocation of torch's, those inside operators included."""
    peak, held = Peak(), 0
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        yield peak
    events = measured.profiler.kineto_results.events()
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak.num_bytes = max(peak.num_bytes, held)
