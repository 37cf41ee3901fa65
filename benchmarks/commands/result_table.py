"""The results of a measurement: a row on the terminal for each, and files with those so far."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from benchmarks import report
from benchmarks.commands.arguments import print_lines

R = TypeVar("R")


class ResultTable(AbstractContextManager["ResultTable[R]"], Generic[R]):
    """Prints its head when it is entered. Each result is printed, and all so far are written.

    So a measurement that is ended, with its machine or without, keeps what it has.

    Args:
        folder: of `<name>.json` and `<name>.md`.
        name: of the files.
        info: as `benchmarks.report.environment_info` returns it.
        head: the first lines of the table.
        row: the line of a result.
        markdown: the lines of the Markdown file; the same table if it is left out.

    Attributes:
        results: those so far.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        info: Mapping[str, Any],
        head: Sequence[str],
        row: Callable[[R], str],
        markdown: Callable[[Sequence[R]], Iterable[str]] | None = None,
    ) -> None:
        self.results: list[R] = []
        self._folder = folder
        self._name = name
        self._info = info
        self._head = head
        self._row = row
        self._markdown = markdown or self._lines

    def __enter__(self) -> "ResultTable[R]":
        print_lines(*self._head)
        return self

    def add(self, result: R) -> None:
        """Prints a result's row, and writes the files."""
        self.results.append(result)
        print_lines(self._row(result))
        lines = self._markdown(self.results)
        report.write(self._folder, self._name, self._info, self.results, lines)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def _lines(self, results: Sequence[R]) -> list[str]:
        return [*self._head, *map(self._row, results)]
