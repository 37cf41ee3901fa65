"""What a PromQL query asks for, and whether a `/metrics` page has it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import promql_parser
from prometheus_client.parser import text_string_to_metric_families

SCRAPE_LABELS = frozenset({"job", "instance"})
"""Labels that Prometheus adds to everything that it scrapes."""

OF_PROMETHEUS = frozenset({"up"})
"""Metrics that Prometheus makes itself."""

Series = Mapping[str, Sequence[Mapping[str, str]]]
"""Name of a sample -> the labels of each of its series."""


@dataclass(frozen=True, slots=True)
class Selector:
    """One selection of series in a query.

    Attributes:
        matchers: (label, operator as written, value); not the name's.
    """

    name: str
    matchers: tuple[tuple[str, str, str], ...]


_OPERATORS = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}


def selectors(query: str) -> list[Selector]:
    """Every selector of a query; Grafana's intervals may stand in for durations.

    Raises `ValueError` if the query is not PromQL.
    """
    found: list[Selector] = []

    def visit(node: Any) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            matchers = [
                (m.name, _OPERATORS[str(m.op).rpartition(".")[2]], m.value)
                for m in node.matchers.matchers
            ]
            names = [value for label, _, value in matchers if label == "__name__"]
            name = node.name or names[0]
            found.append(Selector(name, tuple(m for m in matchers if m[0] != "__name__")))
        return True

    promql_parser.walk(promql_parser.parse(re.sub(r"\$__\w+", "5m", query)), visit)
    return found


def series(page: str) -> Series:
    """The series of a `/metrics` page in Prometheus' text format."""
    found: dict[str, list[Mapping[str, str]]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def missing(query: str, page: Series, later: Iterable[tuple[str, str]] = ()) -> list[str]:
    """What a query asks for and the page lacks: a metric, a label, or a label's value.

    Args:
        query: in it a label value that begins with `$` is a variable of Grafana, and any value.
        page: the series to look in.
        later: (metric, label) whose values appear only after some event.
    """
    findings = []
    for selector in selectors(query):
        if selector.name in OF_PROMETHEUS:
            continue
        if selector.name not in page:
            findings.append(f"no metric {selector.name}")
            continue
        for label, operator, value in selector.matchers:
            if label in SCRAPE_LABELS:
                continue
            values = {labels[label] for labels in page[selector.name] if label in labels}
            if not values:
                findings.append(f"{selector.name} has no label {label}")
            elif value.startswith("$") or (selector.name, label) in later:
                continue
            elif not any(_matches(operator, value, have) for have in values):
                findings.append(f"{selector.name} has no series with {label}{operator}{value}")
    return findings


def _matches(operator: str, value: str, have: str) -> bool:
    equal = have == value if operator in ("=", "!=") else re.fullmatch(value, have) is not None
    return equal == (operator in ("=", "=~"))
