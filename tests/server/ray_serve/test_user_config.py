"""Serve's `user_config` is a switch, or an error that names the field."""

from typing import Any

import pytest

from server.control.types import OnTimeout
from server.fleet.replica import FleetSwitch, Way
from server.ray_serve.user_config import UserConfigError, read_user_config


def test_the_fields_are_those_of_a_switch() -> None:
    given = {
        "revision": 3,
        "spec_method": "load",
        "num_speculative_tokens": 4,
        "mode": "drain",
        "timeout_s": 5,
        "on_timeout": "move",
        "spec_policy": {"load": {"disable_by_batch_size": 8}},
    }
    way = Way("drain", 5, OnTimeout.MOVE, "revision 3 of user_config")
    policies = {"load": {"disable_by_batch_size": 8}}
    assert read_user_config(given).fleet_switch() == FleetSwitch("load", 4, policies, way)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "user_config: "),
        ({"spec_method": "auto"}, "revision: "),
        ({"revision": 0, "spec_method": "auto"}, "revision: "),
        ({"revision": "1", "spec_method": "auto"}, "revision: "),
        ({"revision": 1}, "spec_method: "),
        ({"revision": 1, "spec_method": "auto", "method": "ngram"}, "method: "),
        ({"revision": 1, "spec_method": "auto", "mode": "soon"}, "mode: .*'soon'"),
        ({"revision": 1, "spec_method": "auto", "timeout_s": 0}, "timeout_s: "),
    ],
)
def test_a_fault_is_named(given: Any, message: str) -> None:
    with pytest.raises(UserConfigError, match=message):
        read_user_config(given)
