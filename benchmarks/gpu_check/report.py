"""The report: one page for people, and the same as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.gpu_check.running import Outcome, StageResult

HEAD = ("| stage | shows | result | s |", "|---|---|---|---|")


def table_row(result: StageResult) -> str:
    """A stage's row of the table under `HEAD`."""
    outcome = f"{result.outcome}: {result.reason}" if result.reason else str(result.outcome)
    return f"| {result.name} | {result.purpose} | {_cell(outcome)} | {result.seconds:.0f} |"


def passed(results: Sequence[StageResult]) -> bool:
    """Whether every stage that ran passed, and one did."""
    outcomes = {result.outcome for result in results}
    return Outcome.PASSED in outcomes and outcomes <= {Outcome.PASSED, Outcome.SKIPPED}


def page(info: Mapping[str, Any], results: Sequence[StageResult]) -> list[str]:
    """The lines of the Markdown file.

    Args:
        info: as `benchmarks.report.environment_info` returns it, and the devices.
    """
    lines = ["# GPU check", "", *_verdict(info, results), ""]
    lines += [*HEAD, *map(table_row, results), ""]
    for result in results:
        lines += _section(result)
    lines += ["## Environment", ""]
    lines += [f"- {name}: {_told(value)}" for name, value in info.items()]
    return lines


def _verdict(info: Mapping[str, Any], results: Sequence[StageResult]) -> Iterator[str]:
    ran = [result for result in results if result.outcome is not Outcome.SKIPPED]
    verdict = "every one passed" if passed(results) else "not every one passed"
    minutes = sum(result.seconds for result in ran) / 60
    yield f"{len(ran)} stages ran; {verdict}. {minutes:.0f} minutes on {_told(info['devices'])}."
    if skipped := [result.name for result in results if result.outcome is Outcome.SKIPPED]:
        yield f"Left out: {', '.join(skipped)}."
    if failed := [result.name for result in ran if result.outcome is not Outcome.PASSED]:
        yield f"Begin with `{failed[0]}`: a stage is of little use before those above it pass."


def _section(result: StageResult) -> Iterator[str]:
    if not (result.rows or result.problems or result.log_end):
        return
    yield from (f"## {result.name}", "")
    if result.reading:
        yield from (result.reading, "")
    if result.problems:
        yield from (f"- {problem}" for problem in result.problems)
        yield ""
    if result.rows:
        columns = list(dict.fromkeys(name for row in result.rows for name in row))
        yield f"| {' | '.join(columns)} |"
        yield "|---" * len(columns) + "|"
        for row in result.rows:
            yield f"| {' | '.join(_cell(_told(row.get(name, ''))) for name in columns)} |"
        yield ""
    if result.notes:
        yield from ("vLLM said:", *(f"- {note}" for note in result.notes), "")
    if result.log_end:
        yield from (f"The end of `{result.log}`:", "```", *result.log_end, "```", "")


def _told(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_told(entry)}" for name, entry in value.items()) or "none"
    if isinstance(value, list | tuple):
        return "; ".join(map(_told, value)) or "none"
    return str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
