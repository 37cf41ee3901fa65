"""`python -m benchmarks.plan`: its tables, and the arguments that it refuses."""

import re
from functools import partial

import pytest

from benchmarks.commands import run_command
from benchmarks.plan.__main__ import make_parser, run
from engine_adapter.policies.names import POLICY_NAMES
from tests.benchmarks.refusal import complaint

measure = partial(run_command, make_parser(), run)


def test_every_policy_has_a_row_for_each_number_of_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert measure(["--rows", "1", "--rows", "3", "--steps", "8"]) == 0
    head, line, *rows = capsys.readouterr().out.splitlines()
    assert head.count("|") == line.count("|") == 7
    found = [re.fullmatch(r"\| `(\w+)` \| (\d+)((?: \| \d+){4}) \|", row) for row in rows]
    assert all(found), rows
    named = [(row[1], row[2]) for row in found if row]
    assert named == [(name, number) for name in POLICY_NAMES for number in ("1", "3")]
    for row in found:
        assert row
        plan, plan_p99, observe, observe_p99 = (int(cell) for cell in row[3].split(" | ")[1:])
        assert 0 < plan <= plan_p99
        assert 0 < observe <= observe_p99


def test_a_policy_that_is_named_twice_is_measured_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--policy", "auto", "--policy", "auto", "--rows", "2", "--steps", "4"]
    assert measure([*words]) == 0
    assert capsys.readouterr().out.count("| `auto` | 2 |") == 1


def test_a_profile_has_the_functions_of_the_planner(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--policy", "load", "--rows", "2", "--steps", "4", "--profile"]
    assert measure([*words]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("**load, 2 rows**\n\n| function | calls |")
    assert "| `planner.plan` | 1.00 |" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "none"], "--policy: 'none' is unknown; there are auto, load"),
        (["--rows", "0"], "--rows: must be an integer of at least 1, got '0'"),
        (["--steps", "few"], "--steps: must be an integer of at least 1, got 'few'"),
        (["--streams", "2"], "--streams"),
    ],
)
def test_wrong_arguments_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in complaint(measure, words, capsys)
