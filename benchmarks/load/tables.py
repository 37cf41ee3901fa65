"""The results as tables: rows of texts, for Markdown and for the HTML report."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.estimate import Ratio
from benchmarks.load.figures import Distribution, SideFigures
from benchmarks.load.pairs import Pairs, overall


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        title: may be empty.
        head: names of the columns.
        rows: as many cells as columns each.
        notes: paragraphs below it.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def markdown(self) -> Iterator[str]:
        """Its lines."""
        if self.title:
            yield f"**{self.title}**"
            yield ""
        yield _line(self.head)
        yield "|---" * len(self.head) + "|"
        for row in self.rows:
            yield _line(row)
        yield ""
        for note in self.notes:
            yield note
            yield ""


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


NOTES = (
    "A latency is its mean and, in brackets, its percentiles 50, 95 and 99. A ratio has its 95 % "
    "bootstrap interval in brackets. Ratios of tokens per second and of goodput are medians over "
    "repetitions; ratios of latencies are ratios of means over the requests that succeeded on both "
    "sides, and below 1 is faster."
)

MAX_ERROR_LENGTH = 300
"""Characters of a server's error that a note shows."""

THROUGHPUT_HEAD = (
    "side",
    "requests",
    "errors",
    "tokens/s",
    "requests/s",
    "tokens per step",
    "TTFT ms",
    "TPOT ms",
    "ITL ms",
    "e2e ms",
    "goodput",
)
RATIO_HEAD = ("side", "pairs", "tokens/s", "mean TTFT", "mean TPOT", "mean e2e", "goodput")


def figures_table(figures: Sequence[SideFigures], title: str = "") -> Table:
    """One condition: a row for each side. A latency is its mean and its percentiles 50, 95, 99."""
    rows = [
        (
            f"`{f.side}`",
            str(f.requests),
            errors_text(f.errors),
            f"{f.tokens_per_s:.1f}",
            f"{f.requests_per_s:.2f}",
            _number(f.tokens_per_step),
            *(
                _latency(d)
                for d in (f.latencies.ttft, f.latencies.tpot, f.latencies.itl, f.latencies.e2e)
            ),
            _goodput(f),
        )
        for f in figures
    ]
    failures = [
        f"`{f.side}`: {sum(f.errors.values())} of {f.requests} requests failed, the first with "
        f"{f.first_error[:MAX_ERROR_LENGTH]}"
        for f in figures
        if f.first_error
    ]
    return _without_empty_last(Table(title, THROUGHPUT_HEAD, rows, failures))


def _without_empty_last(table: Table) -> Table:
    """The table without its last column if that has no text: goodput without objectives."""
    if any(row[-1] for row in table.rows):
        return table
    return replace(table, head=table.head[:-1], rows=[row[:-1] for row in table.rows])


def labels_table(figures: Sequence[SideFigures], title: str = "") -> Table:
    """One condition: a row for each label and side."""
    labels = dict.fromkeys(label for f in figures for label in f.by_label)
    rows = [
        (
            label,
            f"`{f.side}`",
            str(f.by_label[label].requests),
            _number(f.by_label[label].tokens_per_step),
            _latency(f.by_label[label].latencies.tpot),
            _latency(f.by_label[label].latencies.e2e),
        )
        for label in labels
        for f in figures
        if label in f.by_label
    ]
    head = ("label", "side", "requests", "tokens per step", "TPOT ms", "e2e ms")
    return Table(title, head, rows)


def ratios_table(ratios: Sequence[Pairs], title: str = "") -> Table:
    """One condition: a row for each side but the base."""
    rows = [
        (
            f"`{r.side}`",
            str(r.e2e.pairs) if r.e2e else "0",
            *(_ratio(v) for v in (r.tokens_per_s, r.ttft, r.tpot, r.e2e, r.good_per_s)),
        )
        for r in ratios
    ]
    return _without_empty_last(Table(title, RATIO_HEAD, rows))


def overall_table(ratios: Mapping[str, Sequence[Pairs]], base: str) -> Table:
    """All conditions: the geometric mean of each side's ratio, and the conditions in it."""
    rows = [
        (f"`{side}`", _number(overall(of_side), 3), str(len(of_side)))
        for side, of_side in ratios.items()
    ]
    head = ("side", "tokens/s, geometric mean", "conditions")
    return Table(f"All conditions, ratios to `{base}`", head, rows)


def errors_text(errors: Mapping[str, int]) -> str:
    """Each error with its number; `0` without errors."""
    return ", ".join(f"{name}: {number}" for name, number in sorted(errors.items())) or "0"


def _latency(values: Distribution | None) -> str:
    if values is None:
        return ""
    return (
        f"{_short(values.mean)} ({_short(values.p50)}, {_short(values.p95)}, {_short(values.p99)})"
    )


def _short(value: float) -> str:
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f}"


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _ratio(value: Ratio | None) -> str:
    return "" if value is None else value.text(3)


def _goodput(figures: SideFigures) -> str:
    if figures.good_share is None or figures.good_per_s is None:
        return ""
    return f"{figures.good_per_s:.2f}/s ({figures.good_share:.0%})"
