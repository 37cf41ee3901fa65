"""Acceptance: hazards are not means, old traffic is forgotten, requests differ from their class."""

import numpy as np
import pytest

from engine_adapter.policies.acceptance import AcceptanceModel, DraftCases, Floats, Ints
from engine_adapter.policies.contract import RequestClass

GREEDY, SAMPLED = RequestClass.GREEDY, RequestClass.SAMPLED
K = 4


def model(proposers: int = 1) -> AcceptanceModel:
    made = AcceptanceModel(proposers, K)
    made.grow(proposers, 2)
    return made


def index(number: int) -> Ints:
    return np.array([number], np.intp)


def observe(
    made: AcceptanceModel,
    rate: float,
    steps: int,
    asked: int = K,
    found: float = 1.0,
    slot: int = 0,
    kind: RequestClass = GREEDY,
    seed: int = 0,
) -> None:
    """Drafts of one row whose tokens are accepted with a chance."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        drafted = asked if random.random() < found else 0
        accepted = 0
        while accepted < drafted and random.random() < rate:
            accepted += 1
        length = K if drafted else 0
        made.observe(*map(index, (slot, 0, kind, length, drafted, accepted)))


def hazards(
    made: AcceptanceModel, slot: int = 0, kind: RequestClass = GREEDY, length: int = K
) -> Floats:
    """The chance of each position, given that those before it were accepted."""
    cases = DraftCases(index(0), index(length))
    p_accepted = made.p_accepted(index(slot), index(kind), cases)[0, 0]
    return p_accepted / np.concatenate(([1.0], p_accepted[:-1]))


def chance(made: AcceptanceModel, length: int, slot: int = 0) -> float:
    """The chance of a draft of this length."""
    return float(
        made.p_length(index(slot), index(GREEDY), DraftCases(index(0), index(length)))[0, 0]
    )


@pytest.mark.parametrize("asked", [1, 2, 4])
def test_the_first_hazard_does_not_depend_on_the_k_that_was_asked_for(asked: int) -> None:
    made = model()
    observe(made, 0.7, 600, asked)
    assert hazards(made)[0] == pytest.approx(0.7, abs=0.1)


def test_hazards_of_later_positions_are_conditional_and_not_means() -> None:
    made = model()
    observe(made, 0.8, 1500)
    assert hazards(made) == pytest.approx(0.8, abs=0.12)


def test_positions_never_asked_for_have_the_value_of_the_position_before() -> None:
    made = model()
    observe(made, 0.9, 400, asked=2)
    known = hazards(made)
    assert known[3] == pytest.approx(known[1], abs=0.1)


def test_old_traffic_is_forgotten() -> None:
    made = model()
    observe(made, 0.95, 400)
    observe(made, 0.1, 250)
    assert hazards(made, slot=1)[0] < 0.3


def test_a_request_differs_from_its_class() -> None:
    made = model()
    for seed in range(200):
        observe(made, 0.9, 1, slot=0, seed=seed)
        observe(made, 0.2, 1, slot=1, seed=seed)
    assert hazards(made, 0)[0] > hazards(made, 1)[0] + 0.3


def test_a_new_request_in_the_slot_starts_with_its_class() -> None:
    made = model()
    observe(made, 0.9, 100, slot=0)
    observe(made, 0.1, 100, slot=1)
    class_only = model()
    observe(class_only, 0.9, 100, slot=0)
    observe(class_only, 0.1, 100, slot=1)
    made.start_row(1)
    assert hazards(made, 1)[0] > hazards(class_only, 1)[0]


def test_greedy_and_sampled_requests_have_their_own_hazards() -> None:
    made = model()
    observe(made, 0.9, 300, slot=0, kind=GREEDY)
    observe(made, 0.3, 300, slot=1, kind=SAMPLED)
    made.start_row(0)
    made.start_row(1)
    assert hazards(made, 0, GREEDY)[0] == pytest.approx(0.9, abs=0.1)
    assert hazards(made, 1, SAMPLED)[0] == pytest.approx(0.3, abs=0.15)


def test_the_chance_of_a_length_is_how_often_a_draft_has_it() -> None:
    made = model()
    observe(made, 0.9, 800, found=0.3)
    made.start_row(0)
    assert chance(made, K) == pytest.approx(0.3, abs=0.12)
    assert chance(made, 0) == pytest.approx(0.7, abs=0.12)
    assert sum(chance(made, n) for n in range(K + 1)) == pytest.approx(1.0)


def test_a_request_has_lengths_of_its_own() -> None:
    made = model()
    for seed in range(200):
        observe(made, 0.9, 1, found=1.0, slot=0, seed=seed)
        observe(made, 0.9, 1, found=0.0, slot=1, seed=seed)
    assert chance(made, K, slot=0) > 0.8
    assert chance(made, K, slot=1) < 0.2


def test_drafts_of_each_length_have_hazards_of_their_own() -> None:
    made = model()
    for _ in range(200):
        made.observe(*map(index, (0, 0, GREEDY, 4, 4, 4)))
        made.observe(*map(index, (0, 0, GREEDY, 1, 1, 0)))
    assert hazards(made, length=4)[0] > 0.9
    assert hazards(made, length=1)[0] < 0.1
    assert 0.3 < hazards(made, length=2)[0] < 0.7, "a length never seen has those of all lengths"


def test_a_draft_that_was_cut_says_nothing_of_what_was_not_verified() -> None:
    made = model()
    for _ in range(200):
        made.observe(*map(index, (0, 0, GREEDY, 4, 2, 2)))
    assert hazards(made)[1] > 0.9
    assert made._verified[0, GREEDY, 4].tolist()[2:] == [0.0, 0.0]


def test_a_draft_that_found_nothing_is_not_a_rejection() -> None:
    made = model()
    observe(made, 0.9, 600, found=0.2)
    made.start_row(0)
    assert hazards(made)[0] > 0.75


def test_an_unloaded_proposer_leaves_the_prior() -> None:
    made, new = model(), model()
    observe(made, 0.99, 100)
    made.forget_proposer(0)
    assert hazards(made) == pytest.approx(hazards(new))


def test_counts_are_restored_and_those_of_another_shape_are_ignored() -> None:
    made, again, other = model(), model(), AcceptanceModel(1, K + 1)
    observe(made, 0.8, 100)
    again.restore(0, made.export(0))
    made.start_row(0)
    made.restore(0, made.export(0))
    assert hazards(again) == pytest.approx(hazards(made), abs=1e-3)
    other.restore(0, made.export(0))
    assert other.drafts.sum() == 0


def test_a_mean_rate_follows_the_evidence_without_any_other_call() -> None:
    made = model()
    observe(made, 0.05, 100)
    assert made.mean_rate(0, GREEDY, 1) < 0.3
