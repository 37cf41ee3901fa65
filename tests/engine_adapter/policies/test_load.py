"""`load`: levels, hysteresis, dwell, and every bad input with its field."""

from typing import Any

import pytest

from engine_adapter.policies.contract import RowView, StepView
from engine_adapter.policies.load import LoadPolicy, load_json, read_load
from engine_adapter.policies.parameters import PolicyError
from engine_adapter.seam.types import NONE, SpecMethod

KS = {"small": 4, "ngram": 5}
GIVEN = {
    "light": {"proposer": "small", "max_running": 4, "max_waiting": 10},
    "heavy": {"proposer": "ngram", "num_speculative_tokens": 2, "max_running": 16},
    "dwell_steps": 3,
    "hysteresis": 0.5,
}


def policy(given: dict[str, Any] | None = None) -> LoadPolicy:
    return LoadPolicy(read_load(GIVEN if given is None else given, KS, "small"))


def chosen(made: LoadPolicy, running: int, waiting: int = 0) -> str:
    """The proposer of a step with this load."""
    row = RowView("r", SpecMethod("load", 8), 100)
    plan = made.plan(StepView([row], running, waiting))
    return plan.drafts["r"].proposer if plan.drafts else NONE


@pytest.mark.parametrize(
    ("running", "waiting", "proposer"),
    [(4, 10, "small"), (5, 0, "ngram"), (4, 11, "ngram"), (16, 99, "ngram"), (17, 0, NONE)],
)
def test_the_level_follows_the_load(running: int, waiting: int, proposer: str) -> None:
    assert chosen(policy(), running, waiting) == proposer


def test_the_load_rises_over_two_levels_at_once() -> None:
    made = policy()
    assert [chosen(made, 1), chosen(made, 17)] == ["small", NONE]


def test_it_falls_only_below_the_hysteresis_for_the_dwell_and_one_level_at_a_time() -> None:
    made = policy()
    chosen(made, 17)
    assert [chosen(made, 9) for _ in range(10)] == [NONE] * 10
    assert [chosen(made, 8) for _ in range(3)] == [NONE, NONE, "ngram"]
    assert [chosen(made, 2) for _ in range(3)] == ["ngram", "ngram", "small"]


def test_a_rise_during_the_dwell_starts_it_again() -> None:
    made = policy()
    chosen(made, 17)
    loads = [8, 8, 12, 8, 8, 8]
    assert [chosen(made, n) for n in loads] == [NONE] * 5 + ["ngram"]


def test_a_load_that_swings_at_a_threshold_does_not_swing_the_level() -> None:
    made = policy()
    seen = [chosen(made, 4 + number % 2) for number in range(100)]
    assert seen == ["small"] + ["ngram"] * 99


def test_the_shortest_form_turns_off_at_the_batch_size() -> None:
    made = policy({"disable_by_batch_size": 8})
    assert chosen(made, 7) == "small"
    assert chosen(made, 8) == NONE


def test_the_json_of_parameters_is_read_back() -> None:
    parameters = read_load(GIVEN, KS, "small")
    assert read_load(load_json(parameters), KS, None) == parameters


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"medium": {}}, "medium"),
        ({"light": 3}, "light"),
        ({"light": {"max_running": 4, "k": 2}}, "light.k"),
        ({"light": {}}, "light.max_running"),
        ({"light": {"max_running": -1}}, "light.max_running"),
        ({"light": {"max_running": 2.5}}, "light.max_running"),
        ({"light": {"max_running": True}}, "light.max_running"),
        ({"light": {"max_running": 1 << 40}}, "light.max_running"),
        ({"light": {"max_waiting": "4"}}, "light.max_waiting"),
        ({"light": {"max_running": 4, "proposer": "eagle"}}, "light.proposer"),
        ({"light": {"max_running": 4, "proposer": ["x"]}}, "light.proposer"),
        (
            {"light": {"max_running": 4, "num_speculative_tokens": 5}},
            "light.num_speculative_tokens",
        ),
        (
            {"light": {"max_running": 4, "num_speculative_tokens": 0}},
            "light.num_speculative_tokens",
        ),
        ({"light": {"max_running": 4}, "heavy": {"max_running": 4}}, "heavy.max_running"),
        ({"light": {"max_running": 4}, "heavy": {"max_running": 3}}, "heavy.max_running"),
        ({"light": {"max_waiting": 4}, "heavy": {"max_running": 3}}, "heavy.max_running"),
        ({"light": {"max_running": 1}, "extreme": {"max_running": 4}}, "extreme.max_running"),
        ({"hysteresis": 0.95}, "hysteresis"),
        ({"hysteresis": float("nan")}, "hysteresis"),
        ({"dwell_steps": -1}, "dwell_steps"),
        ({"dwell_steps": 1.5}, "dwell_steps"),
        ({"disable_by_batch_size": 1}, "disable_by_batch_size"),
        ({"disable_by_batch_size": "8"}, "disable_by_batch_size"),
        ({"disable_by_batch_size": 8, "light": {}}, "light"),
        ({"proposer": "small"}, "proposer"),
    ],
)
def test_bad_parameters_are_refused_with_their_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_load(given, KS, "small")
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


def test_a_level_without_a_proposer_needs_a_primary() -> None:
    with pytest.raises(PolicyError, match=r"light\.proposer"):
        read_load({"light": {"max_running": 4}}, KS, None)
