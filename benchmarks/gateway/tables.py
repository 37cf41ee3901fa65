"""The results as Markdown tables."""

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.estimate import paired_ratio
from benchmarks.gateway.figures import Cost, Latency
from benchmarks.gateway.run import GatewayPlan, GatewayResults
from benchmarks.gateway.sides import BARE


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
