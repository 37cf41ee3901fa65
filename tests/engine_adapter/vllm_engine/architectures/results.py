"""What the checks found: one entry for each architecture, kept in `results.json`."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

PREFIX_HIT = "prefix hit"
CHECKS = ("greedy", "sampled", "switch", PREFIX_HIT, "preemption")
FILE = Path(__file__).with_name("results.json")


@dataclass
class Cell:
    """The texts of one proposer in one check.

    Attributes:
        texts: how many were compared.
        differ: how many were not the expected ones.
    """

    texts: int = 0
    differ: int = 0

    def add(self, same: bool) -> None:
        """Counts a text."""
        self.texts += 1
        self.differ += not same


@dataclass
class Result:
    """What the checks found for one architecture.

    Attributes:
        architecture: its name in `config.json`.
        layers: the kinds of attention of its layers.
        cells: proposer -> check -> texts.
        acceptance: proposer -> the share of its drafted tokens that were the text's.
        own_drafts, own_wrong: tokens that the target drafted for itself, and how many of them were
            not the text's.
        drafts, drafts_differ: drafts that were compared with those of a run that never switched,
            had no prefix hit and was never preempted.
        ties: texts that differ from stock vLLM's where its two best tokens are as good as equal.
        steps: engine steps under random switches.
        preemptions: runs in which a request was preempted.
        cached: tokens that were found in the prefix cache.
        recurrent: whether it has layers of Mamba 2, and so no prefix cache.
    """

    architecture: str
    layers: str
    cells: dict[str, dict[str, Cell]] = field(default_factory=dict)
    acceptance: dict[str, float] = field(default_factory=dict)
    own_drafts: int = 0
    own_wrong: int = 0
    drafts: int = 0
    drafts_differ: int = 0
    ties: int = 0
    steps: int = 0
    preemptions: int = 0
    cached: int = 0
    recurrent: bool = False

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks that each of its proposers must have."""
        return tuple(one for one in CHECKS if not (self.recurrent and one == PREFIX_HIT))

    def cell(self, proposer: str, check: str) -> Cell:
        """A cell; an empty one the first time."""
        return self.cells.setdefault(proposer, {}).setdefault(check, Cell())

    def all_cells(self) -> Iterable[Cell]:
        """The cells of every proposer and check."""
        return (cell for by_check in self.cells.values() for cell in by_check.values())

    @property
    def proven(self) -> bool:
        """Whether every proposer has every check, without a difference."""
        complete = all(set(by_check) == set(self.checks) for by_check in self.cells.values())
        same = all(cell.texts and not cell.differ for cell in self.all_cells())
        return complete and same and not self.own_wrong and not self.drafts_differ


def load() -> dict[str, Result]:
    """Name of the row -> result."""
    if not FILE.exists():
        return {}
    return {name: _result(fields) for name, fields in json.loads(FILE.read_text()).items()}


def save(name: str, result: Result) -> None:
    """Replaces the entry of one row."""
    entries = {**load(), name: result}
    lines = (
        f"{json.dumps(key)}: {json.dumps(asdict(entries[key]), sort_keys=True)}"
        for key in sorted(entries)
    )
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _result(fields: Mapping[str, object]) -> Result:
    result = Result(**{**fields, "cells": {}})  # type: ignore[arg-type]
    cells: dict[str, dict[str, dict[str, int]]] = fields["cells"]  # type: ignore[assignment]
    for proposer, by_check in cells.items():
        result.cells[proposer] = {check: Cell(**counts) for check, counts in by_check.items()}
    return result
