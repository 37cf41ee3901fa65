"""Probes and shadows: within their budgets, and measurements that are not in use stay fresh."""

from collections import Counter

import pytest

from engine_adapter.policies.contract import DraftOutcome
from engine_adapter.policies.explore import MAX_SAVED_S, STALE_STEPS, Explorer
from engine_adapter.policies.measurements import PROVEN_DRAFTS
from engine_adapter.policies.names import AUTO
from tests.engine_adapter.policies.traffic import CALL_S, STEP_S, Traffic

SHARE = 0.02


def proven(rows: int = 2) -> Traffic:
    """Traffic in which every proposer has drafted."""
    traffic = Traffic(AUTO, rows)
    traffic.steps(200)
    return traffic


def test_a_proposer_that_never_drafted_is_probed_without_a_budget() -> None:
    traffic = Traffic(AUTO)
    explorer = Explorer(traffic.measurements, 0.0)
    rows = traffic.view().rows
    assert any(explorer.probe(rows, frozenset()) for _ in range(2))


def test_every_selectable_proposer_is_proven_soon() -> None:
    traffic = Traffic(AUTO)
    traffic.steps(40 + 8 * PROVEN_DRAFTS)
    measurements = traffic.measurements
    assert all(measurements.is_proven(i) for i in measurements.candidates())


def test_probes_cost_at_most_their_share() -> None:
    traffic = proven()
    explorer = Explorer(traffic.measurements, SHARE)
    names = Counter[int]()
    for _ in range(4000):
        traffic.measurements.steps += 1
        explorer.earn(STEP_S)
        probe = explorer.probe(traffic.view().rows, frozenset())
        names.update([probe.proposer] if probe else [])
    times = traffic.measurements.draft_times
    spent = sum(
        count * times[i].seconds(1, k, k, 0)
        for i, count in names.items()
        for k in [traffic.measurements.traits(i).num_speculative_tokens]
    )
    assert names
    assert spent <= SHARE * 4000 * STEP_S


def test_without_a_budget_nothing_that_is_proven_is_probed() -> None:
    traffic = proven()
    traffic.measurements.steps += 10 * STALE_STEPS
    explorer = Explorer(traffic.measurements, 0.0)
    assert not any(explorer.probe(traffic.view().rows, frozenset()) for _ in range(100))


def test_fresh_evidence_and_proposers_in_use_are_not_probed() -> None:
    traffic = proven()
    explorer = Explorer(traffic.measurements, 0.2)
    for _ in range(100):
        explorer.earn(STEP_S)
    everything = frozenset(traffic.measurements.candidates())
    traffic.measurements.steps += 10 * STALE_STEPS
    assert explorer.probe(traffic.view().rows, everything) is None


def outdated(traffic: Traffic, name: str) -> int:
    """Makes a proposer's newest drafts better than its measurements predict; returns its index."""
    index = traffic.measurements.loaded[name]
    k = traffic.measurements.traits(index).num_speculative_tokens
    for _ in range(60):
        traffic.measurements.observe_drafts([DraftOutcome("r0", name, k, k, k, 0)])
    assert not traffic.measurements.is_outdated(index)
    traffic.measurements.observe_drafts([DraftOutcome("r0", name, k, k, k, k)])
    assert traffic.measurements.is_outdated(index)
    return index


def test_a_proposer_that_has_become_better_is_probed_again_on_credit() -> None:
    traffic = proven()
    draft = outdated(traffic, "draft")
    explorer = Explorer(traffic.measurements, 0.0)
    probes = [explorer.probe(traffic.view().rows, frozenset()) for _ in range(1000)]
    assert {probe.proposer for probe in probes if probe} == {draft}
    assert explorer.probes > 5
    times = traffic.measurements.draft_times[draft]
    assert explorer.probes * times.seconds(1, 4, 4, 0) <= MAX_SAVED_S


def test_probes_on_credit_end_when_the_prediction_is_right() -> None:
    traffic = proven()
    draft = outdated(traffic, "draft")
    for _ in range(300):
        traffic.measurements.observe_drafts([DraftOutcome("r0", "draft", 4, 4, 4, 4)])
    assert not traffic.measurements.is_outdated(draft)


def test_a_lookup_is_not_probed_on_credit_for_it_drafts_in_the_shadow() -> None:
    traffic = proven()
    outdated(traffic, "ngram")
    explorer = Explorer(traffic.measurements, 0.0)
    assert not any(explorer.probe(traffic.view().rows, frozenset()) for _ in range(100))


def test_a_probe_reads_the_rows_that_lag_least_and_fits_their_budget() -> None:
    traffic = proven(8)
    traffic.measurements.steps += 10 * STALE_STEPS
    explorer = Explorer(traffic.measurements, 0.2)
    for _ in range(2000):
        explorer.earn(STEP_S)
    rows = {row.request_id: row for row in traffic.view().rows}
    probe = next(p for _ in range(10) if (p := explorer.probe(list(rows.values()), frozenset())))
    assert all(0 < k <= rows[r].draft_budget for r, k in probe.lengths.items())


def test_shadows_are_for_lookups_only_and_not_where_they_draft_anyway() -> None:
    traffic = proven(4)
    explorer = Explorer(traffic.measurements, 0.2)
    explorer.earn(10 * CALL_S)
    view = traffic.view()
    drafts = traffic.planner.plan(view).drafts
    for name, requests in explorer.shadows(view.rows, drafts).items():
        assert name in ("ngram", "suffix")
        assert not [r for r in requests if r in drafts and drafts[r].proposer == name]


@pytest.mark.parametrize("rows", [1, 5])
def test_every_row_has_its_turn_in_the_shadow(rows: int) -> None:
    traffic = proven(rows)
    explorer = Explorer(traffic.measurements, 0.001)
    seen: set[str] = set()
    for _ in range(400):
        explorer.earn(STEP_S)
        explorer.probe([], frozenset())
        for requests in explorer.shadows(traffic.view().rows, {}).values():
            seen.update(requests)
    assert len(seen) == rows
