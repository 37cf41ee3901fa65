"""The counters of requests and steps, and that what they send survives msgpack."""

from typing import Any

import msgspec
import numpy as np

from engine_adapter.policies.names import POLICY_NAMES
from engine_adapter.seam.counts import PolicyStep, ProposerCounts, SpecStats, StepKind, StepReport
from engine_adapter.seam.types import NONE, SpecMethod
from engine_adapter.vllm_engine.core.counting import EMITTED, RowState, StepTally, Tally
from engine_adapter.vllm_engine.wire import (
    KEY,
    DraftReport,
    decode_counts,
    decode_request,
    decode_step,
)
from tests.engine_adapter.vllm_engine.support.row_steps import RowSteps

PLAIN_TYPES = (dict, list, str, int, float, bool, type(None))


def over_the_wire(value: Any) -> Any:
    """Through msgpack and back; fails on anything but plain types."""

    def refuse(value: Any) -> None:
        assert type(value) in PLAIN_TYPES, f"{type(value)} is not plain"
        for part in value.items() if type(value) is dict else value if type(value) is list else ():
            for piece in part if type(part) is tuple else (part,):
                refuse(piece)

    refuse(value)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


def row(proposer: str = "ngram") -> RowState:
    return RowState(SpecMethod(proposer, 4), pinned=False, streams_stats=False)


def run_step(state: RowState, tokens: int, drafted: int = 0, proposer: str = NONE) -> None:
    """One step of a row: `drafted` tokens of a proposer verified, `tokens` emitted."""
    if drafted:
        state.tallies[proposer].add_verified(drafted, tokens - 1)
    state.add_emitted(tokens, proposer)


def test_a_tally_counts_drafts_positions_and_emitted_tokens() -> None:
    tally = Tally()
    for drafted, accepted in ((4, 2), (3, 0), (4, 4)):
        tally.add_verified(drafted, accepted)
        tally.wire[EMITTED] += accepted + 1
    assert decode_counts(over_the_wire(tally.wire)) == ProposerCounts(
        drafts=3, drafted=11, accepted=6, accepted_per_position=(2, 2, 1, 1), emitted=9
    )


def test_an_empty_tally_is_the_default_counts() -> None:
    assert decode_counts(Tally().wire) == ProposerCounts()


def test_acceptance_falls_along_positions_and_sums_to_the_accepted() -> None:
    rng, tally = np.random.default_rng(0), Tally()
    for _ in range(500):
        drafted = int(rng.integers(1, 9))
        tally.add_verified(drafted, int(rng.integers(0, drafted + 1)))
        counts = decode_counts(tally.wire)
        positions = counts.accepted_per_position
        assert list(positions) == sorted(positions, reverse=True)
        assert sum(positions) == counts.accepted <= counts.drafted
        assert all(0 < accepted <= counts.drafts for accepted in positions)
    assert counts.drafts == 500


def test_a_rows_statistics_survive_the_wire() -> None:
    state = row()
    run_step(state, 1)
    run_step(state, 3, 4, "ngram")
    run_step(state, 1, 2, "small")
    run_step(state, 1)
    assert decode_request(over_the_wire(state.to_wire())) == SpecStats(
        decode_steps=3,
        decode_tokens=5,
        by_proposer={
            "ngram": ProposerCounts(1, 4, 2, (1, 1), 3),
            "small": ProposerCounts(1, 2, 0, (), 1),
        },
    )


def test_the_first_step_is_not_a_decode_step() -> None:
    state = row()
    assert decode_request(state.to_wire()) == SpecStats()
    run_step(state, 1)
    assert decode_request(state.to_wire()) == SpecStats()
    run_step(state, 1)
    assert decode_request(state.to_wire()) == SpecStats(decode_steps=1, decode_tokens=1)


def test_steps_without_drafts_are_credited_to_no_proposer() -> None:
    state = row()
    for _ in range(5):
        run_step(state, 1)
    stats = decode_request(state.to_wire())
    assert stats is not None
    assert stats.by_proposer == {}
    assert (stats.decode_steps, stats.decode_tokens) == (4, 4)


def test_rows_do_not_share_their_tallies() -> None:
    first, second = row(), row()
    first.tallies["ngram"].add_verified(1, 1)
    assert not second.tallies


def test_an_output_without_statistics_decodes_to_none() -> None:
    assert decode_request(None) is None
    assert decode_request({}) is None
    assert decode_request({"another": 1}) is None


def test_a_steps_report_survives_the_wire() -> None:
    drafts = DraftReport({"small": 0.5}, {"small": 8}, {"small": 17}, {"bad": "ValueError: no"})
    step = StepTally(StepKind.VERIFY, drafts, seconds=0.25)
    step.tallies["small"].add_verified(4, 1)
    step.tallies["small"].wire[EMITTED] += 2
    step.tallies[NONE].wire[EMITTED] += 3
    step.quarantined = ["bad"]
    report = decode_step(over_the_wire(step.to_wire()))
    assert report == StepReport(
        kind=StepKind.VERIFY,
        seconds=0.25,
        verified={
            "small": ProposerCounts(1, 4, 1, (1,), 2),
            NONE: ProposerCounts(emitted=3),
        },
        draft_seconds={"small": 0.5},
        proposed_tokens={"small": 8},
        catchup_tokens={"small": 17},
        faults={"bad": "ValueError: no"},
        quarantined=("bad",),
    )


def test_what_policies_did_and_measured_survives_the_wire() -> None:
    rows = RowSteps()
    for name in POLICY_NAMES:
        rows.admit(name, SpecMethod(name, 5))
    for _ in range(12):
        rows.step(**dict.fromkeys(POLICY_NAMES, (2, 1)))
    step = StepTally(
        policy=PolicyStep({"load": {"ngram": 2, NONE: 0}}, 0.03, 0.04, {"load": False}),
        evidence=rows.table.planner.snapshot(),
    )
    report = decode_step(over_the_wire(step.to_wire()))
    assert report.policy == step.policy
    assert report.evidence == step.evidence
    assert set((report.evidence or {})["policies"]) == set(POLICY_NAMES)
    unknown = StepTally(policy=PolicyStep({}, None, None, {}))
    assert decode_step(over_the_wire(unknown.to_wire())).policy == PolicyStep()


def test_a_step_that_drafted_nothing_reports_no_drafting() -> None:
    report = decode_step(over_the_wire(StepTally(seconds=0.1).to_wire()))
    assert report == StepReport(StepKind.DECODE, 0.1, {}, {}, {}, {})


def test_all_statistics_are_under_one_key() -> None:
    assert list(row().to_wire()) == list(StepTally().to_wire()) == [KEY]
