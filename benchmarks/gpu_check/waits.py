"""Where a step waits for the device: what vLLM's check (`VLLM_GPU_SYNC_CHECK`) prints, counted."""

import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePath
from types import FrameType
from typing import Any, TextIO

CHECK = "VLLM_GPU_SYNC_CHECK"

RUN, STEPS = "gpu-check: run of ", "gpu-check: steps "
"""The lines that a stage prints before a run, with its name, and after it, with its steps."""

# Two processes write the log: the line's end may come from the other one.
_STEPS = re.compile(re.escape(STEPS) + r"(\d+)")
_WARNING = re.compile(r"^(?:\(.*?\) )?(?P<file>/\S+?):(?P<line>\d+): UserWarning: (?P<text>.*)$")
_WAIT = "called a synchronizing CUDA operation"
_COPY = "that may be silently synchronous"
_ROOTS = ("site-packages", "engine_adapter")
_OWN = "engine_adapter/"
_WITHIN = ("/vllm/utils/gpu_sync_debug.py", "/site-packages/torch/")
"""Code that waits for its caller."""


def name_callers() -> None:
    """Makes the warnings name the line that called torch; to be called before vLLM is imported.

    torch names the innermost line of Python. While vLLM checks, that is a line of the check itself
    for every `Tensor.to` and `Tensor.copy_`. Warnings of copies are shown every time, too: vLLM
    leaves Python's default, which is once for each line.
    """
    show_warning = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if _WAIT in str(message):
            filename, lineno = _caller() or (filename, lineno)
        show_warning(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    warnings.filterwarnings("always", message=f".*{_COPY}", category=UserWarning)


def _caller() -> tuple[str, int] | None:
    frame: FrameType | None = sys._getframe(2)
    skipped = (__file__, warnings.__file__)
    while frame is not None:
        name = frame.f_code.co_filename
        if name not in skipped and not any(part in name for part in _WITHIN):
            return name, frame.f_lineno
        frame = frame.f_back
    return None


def waits_in(lines: Iterable[str]) -> list[dict[str, Any]]:
    """A row for each run: how often a step waited, and at which lines, the most frequent first.

    vLLM prints a warning for each wait. A line of the engine's log may stand before it. What is
    printed between the runs does not count.
    """
    rows: list[dict[str, Any]] = []
    run: str | None = None
    counts: Counter[str] = Counter()
    for line in lines:
        if line.startswith(RUN):
            run, counts = line.removeprefix(RUN), Counter()
        elif run is not None and (steps := _STEPS.match(line)):
            rows.append(_row(run, int(steps[1]), counts))
            run = None
        elif run is not None and (place := _place(line)):
            counts[place] += 1
    return rows


def _row(run: str, steps: int, counts: Counter[str]) -> dict[str, Any]:
    each = {where: times / max(steps, 1) for where, times in counts.most_common()}
    own_waits = sum(times for where, times in each.items() if where.startswith(_OWN))
    return {
        "method": run,
        "steps": steps,
        "Specgate's waits a step": own_waits,
        "vLLM's waits a step": sum(each.values()) - own_waits,
        "where": each,
    }


def _place(line: str) -> str | None:
    """The line of code of a warning, shortened; `None` for any other line."""
    if not (match := _WARNING.match(line)):
        return None
    where = f"{_shortened(match['file'])}:{match['line']}"
    if _WAIT in match["text"]:
        return where
    return f"{where} (a copy that may wait)" if _COPY in match["text"] else None


def _shortened(path: str) -> str:
    """The path from the package on."""
    parts = PurePath(path).parts
    for root in _ROOTS:
        if root in parts:
            index = len(parts) - 1 - parts[::-1].index(root)
            return "/".join(parts[index + (root == "site-packages") :])
    return path
