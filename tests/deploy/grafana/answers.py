"""What a Prometheus answers to every query of a dashboard, and what that says."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.deploy.grafana import queries
from tests.deploy.grafana.prometheus_process import SCRAPE_S, Prometheus
from tests.deploy.grafana.queries import Asked


@dataclass(frozen=True)
class Span:
    """The time that a dashboard shows, and the values of Grafana's own variables for it."""

    start_s: float
    end_s: float
    step_s: float = 2 * SCRAPE_S

    @property
    def values(self) -> dict[str, str]:
        """Grafana's own variables; the rate interval is Grafana's: four scrapes at least."""
        rate_s = max(self.step_s + SCRAPE_S, 4 * SCRAPE_S)
        return {
            "__interval": f"{self.step_s:.0f}s",
            "__rate_interval": f"{rate_s:.0f}s",
            "__range": f"{math.ceil(self.end_s - self.start_s)}s",
        }


def answer(prometheus: Prometheus, asked: Asked, span: Span) -> list[dict[str, Any]]:
    """The series that a query returns for the shown time."""
    if asked.instant:
        return prometheus.at(asked.expr, span.end_s)
    return prometheus.over(asked.expr, span.start_s, span.end_s, span.step_s)


def numbers(series: Iterable[Mapping[str, Any]]) -> list[float]:
    """Every finite value of the series."""
    points = [p for s in series for p in s.get("values", [s["value"]] if "value" in s else [])]
    return [number for _, text in points if math.isfinite(number := float(text))]


@dataclass
class Report:
    """A dashboard's queries by what they returned.

    Attributes:
        silent: place -> reason, of queries that returned nothing and may.
        findings: queries that should have returned something, or that are listed as silent and
            are not.
    """

    name: str
    panels: int = 0
    asked: int = 0
    with_data: int = 0
    zeros: list[str] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        reasons = "".join(f"\n    empty: {place}: {why}" for place, why in self.silent.items())
        zeros = f"\n    only zeros: {', '.join(self.zeros)}" if self.zeros else ""
        return (
            f"{self.name}: {self.panels} panels / {self.asked} queries / {self.with_data} with"
            f" data / {len(self.silent)} empty for a reason{reasons}{zeros}"
        )


def check(
    prometheus: Prometheus,
    name: str,
    dashboard: Mapping[str, Any],
    span: Span,
    repeated: Mapping[str, Sequence[str]],
    reasons: Mapping[str, str],
) -> Report:
    """Asks every query of every panel and annotation.

    `reasons` says which may be empty, as `title` or `title/letter`, and why.
    """
    values = queries.defaults(dashboard) | span.values
    shown = [s for s in queries.layout(dashboard, values, repeated) if s.kind != "row"]
    report = Report(name, panels=len(shown))
    asked = [(s.title, query) for s in shown for query in s.queries]
    asked += [(query.place, query) for query in queries.annotations(dashboard, values)]
    for title, query in asked:
        _note(report, f"{title}/{query.letter}", answer(prometheus, query, span), reasons, query)
    return report


def _note(
    report: Report,
    place: str,
    series: list[dict[str, Any]],
    reasons: Mapping[str, str],
    query: Asked,
) -> None:
    report.asked += 1
    found = numbers(series)
    reason = reasons.get(place)
    if found:
        report.with_data += 1
        if not any(found):
            report.zeros.append(place)
        if reason is not None:
            report.findings.append(f"{place} has data, and is listed as empty: {reason}")
    elif reason is None:
        report.findings.append(f"{place} returned nothing: {query.expr}")
    else:
        report.silent[place] = reason
