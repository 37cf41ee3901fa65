"""The choice, against brute force over all proposers and lengths of small cases."""

from itertools import product

import numpy as np
import pytest

from engine_adapter.policies.choice import Chooser
from engine_adapter.policies.choice_types import NOTHING, Load, Prices
from engine_adapter.policies.contract import (
    DraftOutcome,
    DraftTime,
    ProposerTraits,
    RequestClass,
    RowView,
)
from engine_adapter.policies.measurements import Measurements
from engine_adapter.seam.types import SpecMethod
from tests.cases import proved_beyond

TOLERANCE = 0.05
"""The share of the best rate that the choice may miss."""

LOOKUP = ProposerTraits("lookup", 3, lookup=True)
MODEL = ProposerTraits("model", 2)
GATED = ProposerTraits("model", 2, ends_early=True)
PROPOSERS = (LOOKUP, MODEL)


NO_LAG = np.zeros(0)


def measurements(
    seed: int, rows: int, model: ProposerTraits = MODEL
) -> tuple[Measurements, list[RowView]]:
    """Two proposers with random qualities and costs, and rows that differ."""
    random = np.random.default_rng(seed)
    known = Measurements((LOOKUP, model), 3)
    views = [RowView(f"r{i}", SpecMethod("auto", 3), 100, 50) for i in range(rows)]
    for view in views:
        known.admit(view.request_id, RequestClass.GREEDY)
    rates = random.uniform(0.05, 0.95, (rows, 2))
    call_s, token_s = random.uniform(0.0005, 0.01), random.uniform(1e-4, 6e-3)
    for _ in range(80):
        seen = []
        for i, view in enumerate(views):
            for j, traits in enumerate(PROPOSERS):
                k = traits.num_speculative_tokens
                hits = random.random(k) < rates[i, j]
                found = k
                if model.ends_early and traits is MODEL:
                    found = int(random.integers(0, k + 1))
                accepted = int(np.logical_and.accumulate(hits[:found]).sum())
                seen.append(DraftOutcome(view.request_id, traits.name, k, found, found, accepted))
        known.observe_drafts(seen)
        known.observe_work([("lookup", DraftTime(2e-5, rows, 3, 3 * rows, 0))], NO_LAG)
        k = int(random.integers(1, 3))
        known.observe_work([("model", DraftTime(call_s * (1 + k), rows, k, k * rows, 0))], NO_LAG)
        tokens = rows + int(random.integers(0, 3 * rows + 1))
        known.observe_step(rows, tokens, 50.0 * rows, 0.02 + token_s * tokens)
    return known, views


def expected_rate(
    known: Measurements, views: list[RowView], plan: tuple[tuple[int, int], ...]
) -> float:
    """Tokens per second of a plan: for each row the proposer (an index, or -1) and k."""
    forecast = known.forecast(views, [0, 1])
    tokens, drafted, seconds = float(len(views)), 0.0, 0.0
    for row, (j, k) in enumerate(plan):
        if j >= 0:
            for case in np.flatnonzero(forecast.cases.proposer == j):
                chance, length = forecast.p_length[row, case], forecast.cases.length[case]
                kept = min(k, length)
                reach = forecast.p_reached[row, case, :kept]
                tokens += float(chance * (reach * forecast.p_accepted[row, case, :kept]).sum())
                drafted += float(chance * reach.sum())
    for j in (0, 1):
        ks = [k for at, k in plan if at == j and k]
        if ks:
            seconds += known.draft_times[j].seconds(len(ks), max(ks), sum(ks), 0)
    total = np.array([len(views) + drafted])
    seconds += float(known.step_time.seconds(len(views), total, 50.0 * len(views))[0])
    return tokens / seconds


@pytest.mark.parametrize("model", [MODEL, GATED], ids=["plain", "gated"])
@pytest.mark.parametrize("rows", proved_beyond([2], [1, 2, 3]))
def test_the_choice_is_near_the_best_of_all_proposers_and_lengths(
    rows: int, model: ProposerTraits
) -> None:
    missed = []
    for seed in range(30):
        known, views = measurements(seed, rows, model)
        options = [(-1, 0), *((0, k) for k in (1, 2, 3)), *((1, k) for k in (1, 2))]
        best = max(expected_rate(known, views, plan) for plan in product(options, repeat=rows))
        rate, token = best, 0.3
        for _ in range(6):  # prices of the plan before, as the policy has them
            load = Load(rows, rows, 50.0 * rows)
            chooser = Chooser(known, known.forecast(views, [0, 1]), load, Prices(rate, token))
            choice = chooser.best()
            rate, token = choice.rate, 0.5 * (token + choice.price)
        columns = choice.proposer.tolist(), choice.k.tolist()
        got = expected_rate(known, views, tuple(zip(*columns, strict=True)))
        # A fallback is beyond the brute force: it may only make the choice better.
        missed.append(1 - max(got, choice.rate if (choice.fallback >= 0).any() else 0) / best)
    assert max(missed) <= 4 * TOLERANCE
    assert sum(missed) / len(missed) <= TOLERANCE


def test_plain_decoding_is_chosen_where_nothing_is_accepted() -> None:
    known, views = measurements(0, 2)
    for _ in range(300):
        known.observe_drafts(
            [
                DraftOutcome(v.request_id, t.name, t.num_speculative_tokens, 2, 2, 0)
                for v in views
                for t in PROPOSERS
            ]
        )
    load = Load(2, 2, 100.0)
    chooser = Chooser(known, known.forecast(views, [0, 1]), load, Prices(60.0, 0.3))
    assert chooser.best().rate <= chooser.plain().rate * 1.02


# -- the length of a lookup's draft says how good it is -----------------------------------------


def with_lengths(model_rate: float, call_s: float, rows: int = 1) -> Chooser:
    """A lookup whose drafts of 3 tokens are right, and those of 1 token mostly wrong."""
    random = np.random.default_rng(0)
    known = Measurements(PROPOSERS, 3)
    views = [RowView(f"r{i}", SpecMethod("auto", 3), 100, 50) for i in range(rows)]
    for view in views:
        known.admit(view.request_id, RequestClass.GREEDY)
    for step in range(200):
        found = (3, 1)[step % 2]
        good = int(found == 3 or random.random() < 0.1)
        passed = int(np.logical_and.accumulate(random.random(2) < model_rate).sum())
        for view in views:
            known.observe_drafts(
                [
                    DraftOutcome(view.request_id, "lookup", 3, found, found, found * good),
                    DraftOutcome(view.request_id, "model", 2, 2, 2, passed),
                ]
            )
        known.observe_work([("lookup", DraftTime(2e-5, rows, 3, 3 * rows, 0))], NO_LAG)
        known.observe_work([("model", DraftTime(call_s, rows, 2, 2 * rows, 0))], NO_LAG)
        tokens = rows + step % (3 * rows + 1)
        known.observe_step(rows, tokens, 50.0 * rows, 0.02 + 2e-4 * tokens)
    load = Load(rows, rows, 50.0 * rows)
    return Chooser(known, known.forecast(views, [0, 1]), load, Prices(80.0, 0.05))


def test_a_short_draft_is_dropped_for_the_model_and_a_long_one_is_kept() -> None:
    choice = with_lengths(model_rate=0.9, call_s=0.002).best()
    assert (choice.proposer[0], choice.fallback[0]) == (0, 1)
    assert choice.verify_caps[0].tolist() == [0, 0, 0, 3]


def test_a_model_that_costs_more_than_it_gains_does_not_replace_a_short_draft() -> None:
    choice = with_lengths(model_rate=0.9, call_s=0.2).best()
    assert (choice.proposer[0], choice.fallback[0]) == (0, NOTHING)
    assert choice.verify_caps[0, 3] == 3
