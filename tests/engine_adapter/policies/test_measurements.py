"""What is learned from drafts that a model ends early, where it is not sure."""

from dataclasses import replace

import numpy as np
import pytest

from engine_adapter.policies.contract import DraftOutcome, ProposerTraits, RequestClass, RowView
from engine_adapter.policies.measurements import Forecast, Measurements
from engine_adapter.seam.types import SpecMethod

K = 4
GATED = ProposerTraits("model", K, ends_early=True)
PLAIN = ProposerTraits("model", K)

SURE, ACCEPTED, REFUSED = 0.7, 0.9, 0.2
"""The share of positions at which the model is sure, and the chances of acceptance with and
without."""


def observed(traits: ProposerTraits, *, gated: bool, steps: int = 4000) -> Forecast:
    """What is expected during many drafts of one row, asked for 1 to K tokens in turn.

    Counts decay, so this is the mean over many moments.
    """
    random = np.random.default_rng(7)
    measured = Measurements((traits,), K)
    view = RowView("r", SpecMethod("auto", K), 100, 50)
    measured.admit("r", RequestClass.GREEDY)
    forecasts = []
    for step in range(steps):
        asked = 1 + step % K
        sure = random.random(asked) < SURE
        hits = random.random(asked) < np.where(sure, ACCEPTED, REFUSED)
        found = int(np.logical_and.accumulate(sure).sum()) if gated else asked
        accepted = int(np.logical_and.accumulate(hits[:found]).sum())
        measured.observe_drafts([DraftOutcome("r", "model", asked, found, found, accepted)])
        if step > 200 and not step % 40:
            forecasts.append(measured.forecast([view], [0]))
    means = {
        name: np.mean([getattr(one, name) for one in forecasts], axis=0)
        for name in ("p_length", "p_accepted", "p_reached")
    }
    return replace(forecasts[-1], **means)


def by_position(p_accepted: np.ndarray) -> np.ndarray:
    """The chance of each position, given those before it."""
    at: np.ndarray = p_accepted[0, 0] / np.concatenate(([1.0], p_accepted[0, 0, :-1]))
    return at


def test_a_position_that_was_not_drafted_is_not_a_rejection() -> None:
    forecast = observed(GATED, gated=True)
    assert by_position(forecast.p_accepted) == pytest.approx(np.full(K, ACCEPTED), abs=0.08)


def test_how_far_a_draft_goes_is_known() -> None:
    forecast = observed(GATED, gated=True)
    # A draft that is empty is a case of its own, so the first position of a draft is sure.
    assert forecast.p_length[0, 0] == pytest.approx(SURE, abs=0.08)
    assert forecast.p_reached[0, 0] == pytest.approx(SURE ** np.arange(K), abs=0.1)
    emitted = forecast.p_length[0, 0] * float(
        (forecast.p_reached * forecast.p_accepted)[0, 0].sum()
    )
    right = float(((SURE * ACCEPTED) ** np.arange(1, K + 1)).sum())
    assert emitted == pytest.approx(right, rel=0.12)


def test_without_a_gate_every_position_is_reached() -> None:
    forecast = observed(PLAIN, gated=False)
    assert (forecast.p_reached == 1.0).all()
    usual = SURE * ACCEPTED + (1 - SURE) * REFUSED
    assert by_position(forecast.p_accepted) == pytest.approx(np.full(K, usual), abs=0.1)


def test_a_draft_that_something_else_cut_did_not_end_by_itself() -> None:
    """A model without a gate: for instance, a grammar dropped the rest of its draft."""
    assert (observed(PLAIN, gated=True).p_reached == 1.0).all()


def test_a_rejected_draft_says_nothing_of_where_it_ended() -> None:
    measured = Measurements((GATED,), K)
    measured.admit("r", RequestClass.GREEDY)
    for _ in range(200):
        measured.observe_drafts([DraftOutcome("r", "model", K, 2, 2, 1)])
    view = RowView("r", SpecMethod("auto", K), 100, 50)
    assert (measured.forecast([view], [0]).p_reached == 1.0).all()


def test_what_was_learned_of_early_ends_survives_a_restart() -> None:
    before, after = Measurements((GATED,), K), Measurements((GATED,), K)
    view = RowView("r", SpecMethod("auto", K), 100, 50)
    for measured in (before, after):
        measured.admit("r", RequestClass.GREEDY)
    for _ in range(200):
        before.observe_drafts([DraftOutcome("r", "model", K, 2, 2, 2)])
    after.restore(before.snapshot())
    p_reached = after.forecast([view], [0]).p_reached[0, 0]
    assert p_reached == pytest.approx(before.forecast([view], [0]).p_reached[0, 0], abs=1e-3)
    assert p_reached[2] < 0.1


def test_a_lookup_in_the_place_of_a_cascade_with_a_model_has_no_catch_up() -> None:
    measured = Measurements((ProposerTraits("mix", K, keeps_kv=True),), K)
    measured.remove_proposer("mix")
    measured.add_proposer(ProposerTraits("mix", K, lookup=True))
    measured.admit("r", RequestClass.GREEDY)
    measured.requests.note_lengths([RowView("r", SpecMethod("mix", K), 100, 1000)])
    assert measured.mark_read([("r", SpecMethod("mix", K))]).tolist() == [0]
