"""The order of desired states: total, without a clock, and the same whoever compares."""

import itertools
import json
from pathlib import Path

import pytest

from server.control.records import SpecMethodBody
from server.fleet.desired import DesiredState, next_state, rank_of, read_state, state_json

LOAD = {"load": {"disable_by_batch_size": 3}}
STATES = (
    DesiredState(1, "suffix", 9),
    DesiredState(2, "ngram", 4),
    DesiredState(2, "ngram", 5),
    DesiredState(2, "ngram", 5, LOAD),
    DesiredState(2, "ngram", 5, LOAD, revision=1),
    DesiredState(3, "draft", 1),
)


def test_two_states_have_one_rank_only_if_they_are_equal() -> None:
    for one, other in itertools.combinations(STATES, 2):
        assert one.rank != other.rank
        assert (one.rank > other.rank) is not (other.rank > one.rank)
        if one.generation != other.generation:
            assert (one.rank > other.rank) is (one.generation > other.generation)
    assert all(state.rank > rank_of(None) for state in STATES)


def test_the_order_of_policies_is_no_part_of_the_rank() -> None:
    auto = {"auto": {"min_gain": 0.5}}
    one, other = DesiredState(1, "a", 1, LOAD | auto), DesiredState(1, "a", 1, auto | LOAD)
    assert one.rank == other.rank


@pytest.mark.parametrize("state", STATES)
def test_a_state_survives_its_file(state: DesiredState, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(state_json(state))
    back = read_state(str(path))
    assert back == state
    assert rank_of(back) == state.rank
    assert read_state(str(tmp_path / "missing.json")) is None


def test_the_next_state_is_above_and_keeps_the_other_policies() -> None:
    to = SpecMethodBody("suffix", 8)
    first = next_state(None, to, LOAD, revision=4)
    assert first == DesiredState(1, "suffix", 8, LOAD, 4)
    second = next_state(first, SpecMethodBody("none", 0), {"auto": {}}, revision=3)
    assert second == DesiredState(2, "none", 0, LOAD | {"auto": {}}, 4)
    replaced = next_state(second, to, {"load": {}})
    assert replaced.policies == {"load": {}, "auto": {}}
    renamed = next_state(replaced, to, {"auto": {"min_gain": 0.5}})
    assert renamed.policies == {"load": {}, "auto": {"min_gain": 0.5}}


NGRAM = {"spec_method": "ngram", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "no"),
        json.dumps(NGRAM | {"generation": "x"}),
        json.dumps(NGRAM | {"generation": 0}),
        # No metric can show it.
        pytest.param(json.dumps(NGRAM | {"generation": 10**400}), id="huge"),
    ],
)
def test_a_file_that_is_not_a_state_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="does not have the state of a fleet"):
        read_state(str(path))
