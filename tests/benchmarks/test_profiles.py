"""A profile as a table: of which files, in which order, and for one turn."""

import cProfile
import time
from pathlib import Path

from benchmarks.profiles import profile_rows

HEAD = ["| function | calls | own us | cumulative us |", "|---|---|---|---|"]


def outer() -> None:
    """Takes no time of its own beside `inner`."""
    inner()


def inner() -> None:
    """Takes a millisecond."""
    end_s = time.perf_counter() + 1e-3
    while time.perf_counter() < end_s:
        pass


def profiled() -> cProfile.Profile:
    """The profile of four turns."""
    profile = cProfile.Profile()
    for _ in range(4):
        profile.runcall(outer)
    return profile


def functions(rows: list[str]) -> list[str]:
    """The first cell of each row after the head."""
    assert rows[:2] == HEAD
    return [row.split(" | ")[0] for row in rows[2:]]


def test_functions_are_in_the_order_of_their_cumulative_or_own_time() -> None:
    profile, here = profiled(), [Path(__file__).name]
    rows = list(profile_rows(profile, 4, files=here))
    assert functions(rows) == ["| `test_profiles.outer`", "| `test_profiles.inner`"]
    calls, own_us, total_us = map(float, rows[2].strip("| ").split(" | ")[1:])
    assert (calls, own_us < 1e3 < total_us) == (1.0, True)
    rows = list(profile_rows(profile, 4, files=here, by_own_time=True))
    assert functions(rows)[0] == "| `test_profiles.inner`"


def test_a_written_profile_is_shown_with_the_functions_that_are_built_in(tmp_path: Path) -> None:
    path = str(tmp_path / "profile")
    profiled().dump_stats(path)
    assert "| `<built-in method time.perf_counter>`" in functions(list(profile_rows(path, 4)))
    assert functions(list(profile_rows(path, 4, rows=1))) == ["| `test_profiles.outer`"]
