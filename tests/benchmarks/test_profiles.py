"""A profile as a table: of which files, in which order, and for one turn."""

import cProfile
from pathlib import Path

import pytest

from benchmarks.profiles import profile_rows

HEAD = ["| function | calls | own us | cumulative us |", "|---|---|---|---|"]
HERE = [Path(__file__).name]

_clock = [0.0]
"""The time, in seconds; only the functions below let it pass."""


def outer() -> None:
    """Takes 100 us of its own."""
    _clock[0] += 1e-4
    inner()


def inner() -> None:
    """Takes a millisecond."""
    _clock[0] += sum((5e-4, 5e-4))


@pytest.fixture
def profile() -> cProfile.Profile:
    """Of four turns."""
    profile = cProfile.Profile(lambda: _clock[0])
    for _ in range(4):
        profile.runcall(outer)
    return profile


def test_rows_have_the_times_of_one_turn_in_the_order_of_the_cumulative_ones(
    profile: cProfile.Profile,
) -> None:
    assert list(profile_rows(profile, 4, files=HERE)) == [
        *HEAD,
        "| `test_profiles.outer` | 1.00 | 100.00 | 1100.00 |",
        "| `test_profiles.inner` | 1.00 | 1000.00 | 1000.00 |",
    ]


def test_the_order_can_be_that_of_the_own_times(profile: cProfile.Profile) -> None:
    assert list(profile_rows(profile, 4, files=HERE, rows=1, by_own_time=True)) == [
        *HEAD,
        "| `test_profiles.inner` | 1.00 | 1000.00 | 1000.00 |",
    ]


def test_a_written_profile_is_shown_with_functions_that_are_built_in(
    profile: cProfile.Profile, tmp_path: Path
) -> None:
    path = str(tmp_path / "profile")
    profile.dump_stats(path)
    rows = list(profile_rows(path, 4))
    assert rows[2] == "| `test_profiles.outer` | 1.00 | 100.00 | 1100.00 |"
    assert "| `<built-in method builtins.sum>` | 1.00 | 0.00 | 0.00 |" in rows
