"""The results of a run, and their files: figures, samples, table and report."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.load.figures import SideFigures, side_figures
from benchmarks.load.pairs import Pairs, pairs
from benchmarks.load.run import LoadRun
from benchmarks.load.samples import Condition, Pass
from benchmarks.load.tables import (
    NOTES,
    Table,
    figures_table,
    labels_table,
    overall_table,
    ratios_table,
)

NAME = "load"


@dataclass(frozen=True, slots=True)
class ConditionResults:
    """One condition.

    Attributes:
        figures: of each measured side.
        ratios: of each side but the base.
    """

    condition: Condition
    figures: Sequence[SideFigures]
    ratios: Sequence[Pairs]

    def tables(self) -> Iterator[Table]:
        """Figures, ratios, and the figures of each label if there are several."""
        yield figures_table(self.figures, self.condition.name)
        if self.ratios:
            yield ratios_table(self.ratios, f"Ratios to `{self.ratios[0].base}`")
        if len({label for figures in self.figures for label in figures.by_label}) > 1:
            yield labels_table(self.figures, "By label")


def condition_results(
    passes: Sequence[Pass], sides: Sequence[str], slo: Mapping[str, float]
) -> ConditionResults:
    """The results of one condition.

    Args:
        passes: of one condition, at least one.
        sides: names of the sides; the first is the base.
        slo: see `side_figures`.
    """
    by_side = {name: [each for each in passes if each.side == name] for name in sides}
    measured = {name: of_side for name, of_side in by_side.items() if of_side}
    base = measured.get(sides[0], [])
    return ConditionResults(
        passes[0].condition,
        [side_figures(of_side, slo) for of_side in measured.values()],
        [
            pairs(of_side, base, slo)
            for name, of_side in measured.items()
            if base and name != sides[0]
        ],
    )


def all_results(
    passes: Sequence[Pass], sides: Sequence[str], slo: Mapping[str, float]
) -> list[ConditionResults]:
    """The results of every condition, in the order of measuring."""
    grouped: dict[Condition, list[Pass]] = {}
    for each in passes:
        grouped.setdefault(each.condition, []).append(each)
    return [condition_results(of_one, sides, slo) for of_one in grouped.values()]


def all_tables(results: Sequence[ConditionResults], base: str) -> Iterator[Table]:
    """Every table of the results; with several conditions a table over all comes first."""
    by_side: dict[str, list[Pairs]] = {}
    for result in results:
        for ratio in result.ratios:
            by_side.setdefault(ratio.side, []).append(ratio)
    if len(results) > 1 and by_side:
        yield overall_table(by_side, base)
    for result in results:
        yield from result.tables()


def write(
    folder: Path, info: Mapping[str, Any], run: LoadRun, results: Sequence[ConditionResults]
) -> None:
    """Writes `load.json` (plan and figures), `load.md` (tables) and `load.jsonl` (requests).

    A line of `load.jsonl` is one request with the fields of `Sample`, and its pass.
    """
    base = run.plan.sides[0].name
    lines = [NOTES, ""]
    lines += [line for table in all_tables(results, base) for line in table.markdown()]
    named = [{"name": result.condition.name, **asdict(result)} for result in results]
    report.write(folder, NAME, {**info, **described(run)}, named, lines)
    with (folder / f"{NAME}.jsonl").open("w", encoding="utf-8") as file:
        for number, each in enumerate(run.passes):
            pass_fields = {
                "pass": number,
                "condition": each.condition.name,
                "repetition": each.repetition,
                "side": each.side,
            }
            for sample in sorted(each.samples, key=lambda sample: sample.index):
                file.write(json.dumps({**pass_fields, **asdict(sample)}) + "\n")


def described(run: LoadRun) -> dict[str, Any]:
    """The plan, with the number of prompts of each workload, the servers and the passes.

    API keys are not in it.
    """
    plan = run.plan
    settings = {field.name: getattr(plan, field.name) for field in fields(plan)}
    settings["sides"] = [asdict(side) for side in plan.sides]
    settings["workloads"] = {workload.name: workload.size for workload in plan.workloads}
    return {
        "plan": settings,
        "servers": {
            target.side.name: {
                "model": target.model,
                "refused": target.refused,
                "version": target.version,
            }
            for target in run.targets
        },
        "passes": [
            {
                "condition": each.condition.name,
                "repetition": each.repetition,
                "side": each.side,
                "seconds": each.seconds,
                "is_complete": each.is_complete,
            }
            for each in run.passes
        ],
    }
