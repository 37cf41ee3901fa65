"""The report: one HTML file with tables and plots that loads nothing else."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from benchmarks.load import plots
from benchmarks.load.arrivals import Ramp
from benchmarks.load.results import ConditionResults, all_tables
from benchmarks.load.samples import Pass
from benchmarks.load.tables import NOTES, Table

STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1c1f23; --line: #d5d9de; --soft: #f3f5f7 }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171a; --text: #e3e6e9; --line: #3a4047; --soft: #1e2226 }
}
body { background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif;
  max-width: 80rem; margin: 2rem auto; padding: 0 1rem }
svg { width: 100%; min-width: 44rem; height: auto; margin-top: 1rem; color: var(--text) }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { border: 1px solid var(--line); padding: .25rem .5rem; text-align: right;
  white-space: nowrap }
th:first-child, td:first-child, td:has(code) { text-align: left }
th { background: var(--soft) }
summary { cursor: pointer }
pre { background: var(--soft); padding: .75rem; overflow-x: auto; font-size: 12px }
"""


def page(
    info: Mapping[str, Any], passes: Sequence[Pass], results: Sequence[ConditionResults]
) -> str:
    """The whole document.

    Args:
        info: shown as it is: environment, plan and servers.
        passes: what was measured, for the plots.
        results: of every condition, the base's figures first.
    """
    sides = list(dict.fromkeys(f.side for result in results for f in result.figures))
    body = [
        "<h1>Load report</h1>",
        f"<p><code>{escape(str(info.get('command', '')))}</code></p>",
        f"<p>{escape(NOTES)}</p>",
        "<h2>Throughput</h2>",
        _wide(plots.throughput(results, sides)),
        *_overall(results),
    ]
    for number, result in enumerate(results):
        here = [each for each in passes if each.condition == result.condition]
        body += _condition(number, result, here, sides)
    body += [
        "<h2>Environment and plan</h2>",
        "<details><summary>As in load.json</summary>",
        f"<pre>{escape(json.dumps(info, indent=1, default=str))}</pre></details>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Load report</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _overall(results: Sequence[ConditionResults]) -> Iterator[str]:
    """The table over all conditions, if there are several."""
    if len(results) > 1 and results[0].ratios:
        yield _table(next(iter(all_tables(results, results[0].ratios[0].base))))


def _condition(
    number: int, result: ConditionResults, passes: Sequence[Pass], sides: Sequence[str]
) -> Iterator[str]:
    condition = result.condition
    yield f"<h2>{escape(condition.name)}</h2>"
    for position, table in enumerate(result.tables()):
        # The first one has the heading's text as its title.
        yield _table(table if position else replace(table, title=""))
    yield _wide(plots.latency_curves(number, passes, sides))
    if len({label for figures in result.figures for label in figures.by_label}) > 1:
        yield _wide(plots.label_bars(number, result, sides))
    if isinstance(condition.arrivals, Ramp) or condition.workload.startswith("shift"):
        yield "<h3>Over time</h3>"
        yield _wide(plots.timeline(number, passes, sides))


def _table(table: Table) -> str:
    head = "".join(f"<th>{_cell(name)}</th>" for name in table.head)
    rows = "".join(
        f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in table.rows
    )
    title = f"<h3>{_cell(table.title)}</h3>" if table.title else ""
    notes = "".join(f"<p>{_cell(note)}</p>" for note in table.notes)
    return f"{title}{_wide(f'<table><tr>{head}</tr>{rows}</table>')}{notes}"


def _wide(element: str) -> str:
    """The element, with a scroll bar of its own on a narrow screen."""
    return f'<div class="wide">{element}</div>'


def _cell(text: str) -> str:
    """Escaped; what is in backticks becomes code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
