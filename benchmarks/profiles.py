"""A profile of functions as a Markdown table."""

import cProfile
import pstats
from collections.abc import Iterator, Sequence
from pathlib import Path


def profile_rows(
    profile: cProfile.Profile | str,
    count: int,
    *,
    rows: int = 40,
    files: Sequence[str] = ("",),
    by_own_time: bool = False,
) -> Iterator[str]:
    """The functions that take longest: calls, and own and cumulative microseconds of one turn.

    Args:
        profile: of `cProfile`, or the path of one that was written.
        count: how many turns were profiled, such as steps or events.
        rows: functions that are shown.
        files: parts of the names of files whose functions are shown.
        by_own_time: the order is that of the own time, not of the cumulative one.
    """
    functions = []
    for (file, _, name), (_, calls, own_s, total_s, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if any(part in file for part in files):
            place = f"{Path(file).stem}.{name}" if file.endswith(".py") else name
            own_us, total_us = 1e6 * own_s / count, 1e6 * total_s / count
            key = own_us if by_own_time else total_us
            row = f"| `{place}` | {calls / count:.2f} | {own_us:.2f} | {total_us:.2f} |"
            functions.append((key, row))
    yield "| function | calls | own us | cumulative us |"
    yield "|---|---|---|---|"
    yield from (row for _, row in sorted(functions, reverse=True)[:rows])
