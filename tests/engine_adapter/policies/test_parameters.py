"""Reading the parameters of policies."""

from typing import Any

import pytest

from engine_adapter.policies.catalog import POLICIES, read_policy, to_json
from engine_adapter.policies.goodput import GoodputParameters
from engine_adapter.policies.names import AUTO, GOODPUT, LOAD, POLICY_NAMES, policy_name
from engine_adapter.policies.parameters import PolicyError

KS = {"small": 4}


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_the_defaults_are_written_and_read_back(name: str) -> None:
    parameters = read_policy(name, {}, KS, "small")
    assert read_policy(name, to_json(name, parameters), KS, "small") == parameters


def test_what_is_given_replaces_the_default_alone() -> None:
    parameters = read_policy(AUTO, {"min_gain": 0.5}, KS, None)
    assert parameters == GoodputParameters(min_gain=0.5)


@pytest.mark.parametrize("name", [name for name in POLICY_NAMES if name != LOAD])
@pytest.mark.parametrize("value", [-1, 1e9, float("nan"), float("inf"), "1", None, True, [1]])
def test_a_number_out_of_range_or_of_another_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(PolicyError, match=r"probe_share: must be a number in \[0"):
        read_policy(name, {"probe_share": value}, KS, None)


def test_an_integer_parameter_takes_no_fraction() -> None:
    with pytest.raises(PolicyError, match="guard_window: must be an integer"):
        read_policy(AUTO, {"guard_window": 20.5}, KS, None)


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_an_unknown_parameter_is_refused(name: str) -> None:
    with pytest.raises(PolicyError, match="speed: unknown"):
        read_policy(name, {"speed": 1}, KS, "small")


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PolicyError, match=f"there are {', '.join(POLICIES)}"):
        read_policy("best", {}, KS, None)


def test_a_long_bad_value_is_shown_in_part() -> None:
    with pytest.raises(PolicyError) as caught:
        read_policy(AUTO, {"min_gain": "x" * 100_000}, KS, None)
    assert len(str(caught.value)) < 300


def test_goodput_is_another_name_of_auto() -> None:
    assert policy_name(GOODPUT) == AUTO
    assert policy_name("none") is None
