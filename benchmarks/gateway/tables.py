"""The results as Markdown tables, and a profile of the gateway's functions."""

import pstats
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.estimate import paired_ratio
from benchmarks.gateway.figures import Cost, Latency
from benchmarks.gateway.run import GatewayPlan, GatewayResults
from benchmarks.gateway.sides import BARE

SHOWN = 40
"""Functions that a profile shows."""


def rows(plan: GatewayPlan, results: GatewayResults) -> Iterator[str]:
    """All tables."""
    yield from _cost_rows(results.costs)
    if results.half_load:
        yield ""
        yield (
            f"Half load: {results.rate:.1f} streams per second, an event every "
            f"{plan.step_ms:g} ms in each:"
        )
        yield ""
        yield from _latency_rows(results.half_load)
    if results.many:
        yield ""
        yield f"{plan.streams} streams at once:"
        yield ""
        yield from _latency_rows(results.many)


def _cost_rows(costs: Sequence[Cost]) -> Iterator[str]:
    yield (
        "| side | tokens per event | CPU us per event | times bare | CPU us per request "
        "| streams per second and core |"
    )
    yield "|---|---|---|---|---|---|"
    for cost in costs:
        base = next(each for each in costs if each.side == BARE and each.answer == cost.answer)
        ratio = "" if cost is base else paired_ratio(cost.event_us, base.event_us).text()
        yield (
            f"| {cost.side} | {cost.answer.delta} | {statistics.median(cost.event_us):.1f} "
            f"| {ratio} | {statistics.median(cost.request_us):.0f} "
            f"| {1e6 / statistics.median(cost.stream_us):.0f} |"
        )


def _latency_rows(latencies: Sequence[Latency]) -> Iterator[str]:
    yield (
        "| side | streams | event p50 ms | p99 | added p50 | p99 | first event p50 ms | p99 "
        "| added p50 | p99 | busy cores | CPU us per event | RSS MB |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    base = next(each for each in latencies if each.side == BARE)
    for each in latencies:
        cells = [each.side, str(each.requests)]
        for latency, bare in ((each.lag, base.lag), (each.first, base.first)):
            cells += [f"{latency.p50:.2f}", f"{latency.p99:.2f}"]
            added = (latency.p50 - bare.p50, latency.p99 - bare.p99)
            cells += ["", ""] if each is base else [f"{ms:+.2f}" for ms in added]
        cells += [f"{each.busy:.2f}", f"{each.event_us:.1f}", f"{each.rss_mb:.0f}"]
        yield "| " + " | ".join(cells) + " |"


def profile_rows(path: Path, num_events: int) -> Iterator[str]:
    """The functions with the most time of their own, per event of the profiled streams."""
    yield "| function | calls per event | own us | cumulative us |"
    yield "|---|---|---|---|"
    functions = []
    for (file, _, name), (_, calls, own_s, total, _) in pstats.Stats(str(path)).stats.items():  # type: ignore[attr-defined]
        place = f"{Path(file).stem}.{name}" if file.endswith(".py") else name
        functions.append(
            (1e6 * own_s / num_events, 1e6 * total / num_events, calls / num_events, place)
        )
    for own_us, total_us, calls_per_event, place in sorted(functions, reverse=True)[:SHOWN]:
        yield f"| `{place}` | {calls_per_event:.2f} | {own_us:.2f} | {total_us:.2f} |"
