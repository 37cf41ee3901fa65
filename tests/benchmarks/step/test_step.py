"""`python -m benchmarks.step`: its arguments, without an engine."""

from functools import partial

import pytest

from benchmarks.commands import run_command
from benchmarks.sides import Side
from benchmarks.step import __main__ as step_command
from benchmarks.step.cost import StepPlan
from demo import model_path
from tests.benchmarks.refusal import complaint

step = partial(run_command, step_command.make_parser(), step_command.run)


def test_arguments_become_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[StepPlan] = []
    monkeypatch.setattr(step_command, "measure_steps", lambda plan, print_line: plans.append(plan))
    words = ["--proposer", '{"name": "ngram"}']
    assert step(words) == 0
    more = ["--method", "ngram", "--side", "one", "--side", "all", "--streams", "8"]
    assert step([*words, *more, "--rounds", "3", "--profile", "20"]) == 0
    default, given = plans
    assert default == StepPlan(str(model_path("target")), default.specs, ["none", "ngram"])
    assert given == StepPlan(
        default.target, default.specs, ["ngram"], (Side.ONE, Side.ALL), 8, 3, profile_steps=20
    )
    assert [spec.name for spec in default.specs] == ["ngram"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--side", "two"], "--side: invalid choice: 'two'"),
        (["--profile", "0"], "--profile: must be an integer of at least 1, got '0'"),
        (["--concurrency", "2"], "--concurrency"),
    ],
)
def test_wrong_arguments_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in complaint(step, words, capsys)
