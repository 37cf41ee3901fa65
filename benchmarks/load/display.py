"""The progress of a run on the terminal: a bar for the pass, and tables as they are known."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from benchmarks.http_stream import Reply
from benchmarks.load.results import condition_results
from benchmarks.load.run import LoadPlan
from benchmarks.load.samples import Condition, Pass


class Display:
    """A `Watcher`. A context manager: the bar is shown inside, if stderr is a terminal.

    Args:
        plan: of the run.
        slo: see `side_figures`.
        print_lines: receives the tables.
    """

    def __init__(
        self, plan: LoadPlan, slo: Mapping[str, float], print_lines: Callable[..., None]
    ) -> None:
        self._plan = plan
        self._slo = slo
        self._print_lines = print_lines
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failed]} failed"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,  # it would leave an empty line in a file
        )
        self._task: TaskID | None = None
        self._failed = 0
        self._stack = ExitStack()

    def __enter__(self) -> "Display":
        self._stack.enter_context(self._bar)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def on_pass(self, condition: Condition, repetition: int, side: str) -> None:
        """See `Watcher.on_pass`."""
        plan = self._plan
        limit = "" if plan.seconds is None else f" (up to {plan.seconds:g} s)"
        turn = f"{side}, {repetition + 1}/{plan.repetitions}{limit}"
        self._show(f"{condition.name}: {turn}", plan.requests)

    def on_stage(self, description: str) -> None:
        """See `Watcher.on_stage`."""
        self._show(description, None)

    def _show(self, description: str, total: int | None) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._failed = 0
        self._task = self._bar.add_task(description, total=total, failed=0)

    def on_reply(self, reply: Reply) -> None:
        """See `Watcher.on_reply`."""
        self._failed += reply.status != 200 or reply.problem is not None
        if self._task is not None:
            self._bar.update(self._task, advance=1, failed=self._failed)

    def on_condition(self, condition: Condition, passes: Sequence[Pass]) -> None:
        """See `Watcher.on_condition`."""
        if passes:
            names = [side.name for side in self._plan.sides]
            results = condition_results(passes, names, self._slo)
            self._print_lines(*(line for table in results.tables() for line in table.markdown()))
