"""What is loaded, and what may be loaded and unloaded next."""

from typing import Any

import pytest

from engine_adapter.errors import EngineConfigError, ProposerRefused
from engine_adapter.interface import StepReport
from engine_adapter.proposer_registry import Roster
from engine_adapter.proposers.methods import parse_specs

NGRAM = {"name": "ngram", "num_speculative_tokens": 5}
DRAFT = {"name": "small", "method": "draft_model", "model": "a/b"}
CASCADE = {"name": "cascade", "members": ["ngram", "small"]}


@pytest.fixture
def roster() -> Roster:
    made = Roster(parse_specs([NGRAM, DRAFT, CASCADE]))
    made.adopt([{"small": (100, 40)}, {"small": (100, 40)}])
    return made


def step(**changes: Any) -> StepReport:
    return StepReport("decode", 0.1, {}, **({"draft_seconds": {}, "catchup_tokens": {}} | changes))


def refusal(call: Any, *args: Any) -> str:
    with pytest.raises(ProposerRefused) as caught:
        call(*args)
    return caught.value.code


def test_what_the_ranks_hold_is_summed(roster: Roster) -> None:
    small = roster.infos[1]
    assert (small.weights_bytes, small.kv_bytes, small.tensor_parallel_size) == (200, 80, 2)
    assert (roster.infos[0].weights_bytes, roster.infos[0].tensor_parallel_size) == (0, 1)


def test_what_was_loaded_is_what_the_next_process_starts_with(roster: Roster) -> None:
    spec = roster.check_load({"name": "lookup", "method": "ngram"}, capacity=5)
    assert roster.add(spec, [{}]).state == "loaded"
    roster.remove("cascade")
    assert [spec.name for spec in roster.specs] == ["ngram", "small", "lookup"]
    roster.adopt([{}])
    assert [info.name for info in roster.infos] == ["ngram", "small", "lookup"]


@pytest.mark.parametrize(
    ("fields", "code"), [(NGRAM, "proposer_exists"), (DRAFT | {"name": "x"}, "needs_restart")]
)
def test_what_cannot_be_loaded_now_is_refused(
    roster: Roster, fields: dict[str, Any], code: str
) -> None:
    assert refusal(roster.check_load, fields, 5) == code


def test_a_k_above_the_capacity_names_the_field_and_the_flag(roster: Roster) -> None:
    with pytest.raises(EngineConfigError, match="--max-speculative-tokens") as caught:
        roster.check_load({"name": "suffix", "num_speculative_tokens": 6}, 5)
    assert caught.value.field == "num_speculative_tokens"


def test_a_cascade_of_proposers_with_kv_can_be_loaded(roster: Roster) -> None:
    spec = roster.check_load({"name": "c", "method": "cascade", "members": ["small", "ngram"]}, 5)
    assert spec.num_speculative_tokens == 5


def test_members_stay_until_their_cascade_goes(roster: Roster) -> None:
    assert refusal(roster.check_unload, "ngram") == "proposer_in_use"
    roster.check_unload("cascade")
    roster.remove("cascade")
    roster.check_unload("ngram")
    assert refusal(roster.check_unload, "cascade") == "proposer_not_found"


def test_who_keeps_kv_stays(roster: Roster) -> None:
    roster.remove("cascade")
    assert refusal(roster.check_unload, "small") == "needs_restart"


def test_one_at_a_time_and_the_one_on_its_way_is_shown_last(roster: Roster) -> None:
    roster.loading = roster.check_load({"name": "suffix", "num_speculative_tokens": 5}, 5)
    assert refusal(roster.check_load, {"name": "x", "method": "ngram"}, 5) == "load_in_progress"
    assert refusal(roster.check_unload, "cascade") == "load_in_progress"
    assert [(i.name, i.state) for i in roster.present()][-1] == ("suffix", "loading")
    assert "suffix" not in [info.name for info in roster.infos]


def test_a_new_process_has_a_latency_of_its_own(roster: Roster) -> None:
    roster.note(step(draft_seconds={"ngram": 0.5}), {"ngram": 5})
    assert roster.present()[0].draft_latency_ms == 100
    roster.adopt([{}])
    assert roster.present()[0].draft_latency_ms is None


def test_latency_is_the_mean_per_drafted_token(roster: Roster) -> None:
    roster.note(step(draft_seconds={"ngram": 0.002}), {"ngram": 4})
    roster.note(step(draft_seconds={"ngram": 0.004}), {"ngram": 2})
    shown = {info.name: info.draft_latency_ms for info in roster.present()}
    assert shown["ngram"] == pytest.approx(1.0)
    assert shown["small"] is None
    roster.remove("cascade")
    roster.remove("ngram")
    roster.add(parse_specs([NGRAM])[0], [])
    assert roster.present()[-1].draft_latency_ms is None, "another one of that name begins anew"


def test_quarantine_is_shown_until_another_process_is_adopted(roster: Roster) -> None:
    report = step(faults={"ngram": "ValueError: x", "small": "y"}, quarantined=("ngram",))
    roster.note(report, {})
    states = [(info.state, info.last_error) for info in roster.infos]
    assert states == [("quarantined", "ValueError: x"), ("loaded", None), ("loaded", None)]
    roster.adopt([{}])
    assert {info.state for info in roster.infos} == {"loaded"}
