"""Writes the table of docs/lab/architectures.md from `results.json`.

python -m tests.engine_adapter.vllm_engine.architectures.table
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.engine_adapter.vllm_engine.architectures import results
from tests.engine_adapter.vllm_engine.architectures.architecture import Architecture
from tests.engine_adapter.vllm_engine.architectures.catalog import REFUSED, SERVED
from tests.engine_adapter.vllm_engine.architectures.results import CHECKS, Result

PAGE = Path(__file__).parents[4] / "docs" / "lab" / "architectures.md"
BEGIN, END = "<!-- table of architectures -->\n", "<!-- end of the table -->\n"
PROPOSERS = ("ngram", "suffix", "self", "sibling", "medusa", "eagle", "cascade")


def render(found: Mapping[str, Result]) -> str:
    """The two tables in Markdown: the architectures, and the sums by check."""
    heads = ("model", "architecture in `config.json`", "attention", *PROPOSERS)
    rows = [_served(one, found[one.name]) for one in SERVED if one.name in found]
    rows += [(one.name, "", one.refused, *["refused"] * len(PROPOSERS)) for one in REFUSED]
    return "\n".join([*_table(heads, rows), "", *_sums(list(found.values()))]) + "\n"


def _served(one: Architecture, result: Result) -> tuple[str, ...]:
    cells = [_cell(result, name) for name in PROPOSERS]
    if one.no_eagle:
        cells[PROPOSERS.index("eagle")] = one.no_eagle
    if one.recurrent:
        cells[PROPOSERS.index("self")] = "recurrent"
    return (one.name, f"`{result.architecture}`", result.layers, *cells)


def _cell(result: Result, proposer: str) -> str:
    """The number of texts; beside it what is missing or differs."""
    by_check = result.cells.get(proposer, {})
    faults = [check for check in result.checks if check not in by_check or by_check[check].differ]
    texts = str(sum(cell.texts for cell in by_check.values()))
    return f"{texts}; fails: {', '.join(faults)}" if faults else texts


def _sums(found: Sequence[Result]) -> Iterable[str]:
    """The texts by check, then everything else that was counted."""
    by_check = {
        check: [by[check] for one in found for by in one.cells.values() if check in by]
        for check in CHECKS
    }
    by_check["all"] = [cell for one in found for cell in one.all_cells()]
    rows = [
        (
            check,
            f"{len(cells):,}",
            f"{sum(c.texts for c in cells):,}",
            f"{sum(c.differ for c in cells)}",
        )
        for check, cells in by_check.items()
    ]
    yield from _table(("check", "cells", "texts", "unlike the expected text"), rows)
    yield ""
    counts = {
        "models that passed": len(found),
        "engine steps under random switches": sum(one.steps for one in found),
        "texts that leave stock vLLM's at a tie": sum(one.ties for one in found),
        "tokens that a target drafted for itself": sum(one.own_drafts for one in found),
        "of these, refused": sum(one.own_wrong for one in found),
        "drafts compared with those of the first check": sum(one.drafts for one in found),
        "of these, different": sum(one.drafts_differ for one in found),
    }
    yield from _table(("counted", "number"), [(name, f"{n:,}") for name, n in counts.items()])


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_line(heads), _line(["---"] * len(heads)), *(_line(row) for row in rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def written(page: str, found: Mapping[str, Result]) -> str:
    """The page with the table in its place."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}{render(found)}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(), results.load()))
