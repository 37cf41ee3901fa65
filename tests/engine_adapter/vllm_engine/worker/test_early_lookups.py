"""Which steps the device looks up, and which drafts of them the next step verifies."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.policies.contract import StepPlan
from engine_adapter.proposers.device_lookup import DeviceTokens
from engine_adapter.seam.types import NONE, SpecMethod
from engine_adapter.vllm_engine.worker.drafting.early_drafts import UnreadStep
from engine_adapter.vllm_engine.worker.early_lookups import EarlyLookup, EarlyLookups

LENGTH, CONTEXT, CAPACITY, VOCABULARY = 10, 32, 4, 50
NAMES = ["p", "q", "r"]
PLAIN = SpecMethod(NONE, 0)
NGRAM = SpecMethod("ngram", 3)
PLAN = StepPlan(dict.fromkeys(NAMES, NGRAM))


class Lookup:
    """Drafts 0, 1, ... for each row; `matches`: which of the step's rows have a match."""

    def __init__(self) -> None:
        self.calls: list[tuple[DeviceTokens, int]] = []
        self.matches: list[bool] = [True, True, True]

    def look_up(self, tokens: DeviceTokens, k: int) -> Any:
        self.calls.append((tokens, k))
        return torch.arange(k).repeat(len(tokens.rows), 1), torch.tensor(self.matches)


class Lookups(EarlyLookups):
    """Of a proposer `ngram` and of one that drafts on the CPU alone; three rows are live."""

    def __init__(self) -> None:
        self.ngram = Lookup()
        params = SimpleNamespace(structured_outputs=None)
        runner = SimpleNamespace(
            device=torch.device("cpu"),
            requests={name: SimpleNamespace(sampling_params=params) for name in NAMES},
            input_batch=SimpleNamespace(
                req_ids=NAMES,
                num_tokens_no_spec=np.array([LENGTH, LENGTH + 1, LENGTH + 2], np.int32),
                num_computed_before=lambda rows: np.array([9, 10, 11], np.int32)[rows],
            ),
            req_states=SimpleNamespace(
                all_token_ids=SimpleNamespace(gpu=torch.zeros(3, CONTEXT, dtype=torch.int32)),
                total_len=SimpleNamespace(gpu=torch.tensor([11, 12, 13], dtype=torch.int32)),
                draft_tokens=torch.zeros(3, CAPACITY, dtype=torch.int64),
                vocab_size=VOCABULARY,
            ),
        )
        self.runner = runner
        proposers: dict[str, Any] = {"ngram": self.ngram, "suffix": object()}
        super().__init__(runner, proposers)

    def constrain(self, name: str) -> None:
        params = SimpleNamespace(structured_outputs={"json": {}})
        self.runner.requests[name] = SimpleNamespace(sampling_params=params)

    def launch(self, plan: StepPlan, num_read: tuple[int, ...]) -> EarlyLookup | None:
        """A step of the rows 2, 0 and 1."""
        rows = np.array([2, 0, 1])
        nothing = torch.zeros(3, 1)
        none = np.zeros(3, np.int64)
        step = UnreadStep(rows, np.array(num_read), none, nothing, none, nothing)
        return self.look_up("ngram", plan, step, torch.from_numpy(rows))

    def run(self, plan: StepPlan = PLAN, num_read: tuple[int, ...] = (1, 1, 1)) -> EarlyLookup:
        """The lookup for that step."""
        lookup = self.launch(plan, num_read)
        assert lookup is not None
        return lookup

    def take_lengths(self, lookup: EarlyLookup, *ended: str) -> Mapping[str, int]:
        drafts, _ = self.take(lookup, set(ended))
        return {name: len(row) for name, row in drafts.items()}


@pytest.fixture
def lookups() -> Lookups:
    return Lookups()


def test_a_plan_of_one_lookup_is_looked_up(lookups: Lookups) -> None:
    assert lookups.proposer_of(PLAN, frozenset()) == "ngram"
    plan = StepPlan({"p": NGRAM, "q": SpecMethod("ngram", 1), "r": PLAIN})
    assert lookups.proposer_of(plan, frozenset({"suffix"})) == "ngram"


@pytest.mark.parametrize(
    "plan",
    [
        StepPlan({"p": NGRAM, "q": SpecMethod("suffix", 3)}),
        StepPlan({"p": SpecMethod("suffix", 3)}),
        StepPlan({"p": SpecMethod("unloaded", 3)}),
        StepPlan({"p": PLAIN}),
        StepPlan({"p": NGRAM}, fallbacks={"p": SpecMethod("suffix", 3)}),
        StepPlan({"p": NGRAM}, shadows={"suffix": ["q"]}),
        StepPlan({"p": NGRAM}, verify_caps={"p": [0, 1]}),
    ],
    ids=["two proposers", "not on a device", "unloaded", "none", "fallback", "shadow", "cut"],
)
def test_other_plans_are_not(lookups: Lookups, plan: StepPlan) -> None:
    assert lookups.proposer_of(plan, frozenset()) is None


def test_no_step_is_looked_up_by_a_quarantined_proposer_or_with_structured_output(
    lookups: Lookups,
) -> None:
    assert lookups.proposer_of(PLAN, frozenset({"ngram"})) is None
    lookups.constrain("q")
    assert lookups.proposer_of(PLAN, frozenset()) is None
    assert lookups.proposer_of(StepPlan({"p": NGRAM}), frozenset()) == "ngram"


def test_each_row_has_the_drafts_that_it_was_planned(lookups: Lookups) -> None:
    lookup = lookups.run(StepPlan({"p": NGRAM, "r": SpecMethod("ngram", 1)}))
    ((tokens, k),) = lookups.ngram.calls
    assert (k, tokens.lengths.tolist(), tokens.rows.tolist()) == (3, [13, 11, 12], [2, 0, 1])
    assert tokens.longest == LENGTH + 2 + 2 * (CAPACITY + 1), "two steps are unread at most"
    drafts, report = lookups.take(lookup, set())
    assert {name: list(row) for name, row in drafts.items()} == {"p": [0, 1, 2], "r": [0]}
    assert report.proposed == {"ngram": 4}
    report.complete()
    ((name, call),) = report.work
    assert (name, call.rows, call.longest, call.tokens, call.catchup) == ("ngram", 2, 3, 4, 0)
    assert 0 < report.seconds["ngram"] == call.seconds < 1


def test_no_row_is_longer_than_the_context(lookups: Lookups) -> None:
    lookups.runner.input_batch.num_tokens_no_spec[:] = CONTEXT - 1
    lookups.run()
    assert lookups.ngram.calls[0][0].longest == CONTEXT


def test_a_row_in_the_middle_of_its_prompt_has_no_drafts(lookups: Lookups) -> None:
    lookup = lookups.run(num_read=(1, 0, 1))  # of row 0, which is `p`
    assert lookups.take_lengths(lookup) == {"q": 3, "r": 3}


def test_requests_that_have_ended_get_no_drafts(lookups: Lookups) -> None:
    assert lookups.take_lengths(lookups.run(), "q") == {"p": 3, "r": 3}


def test_a_row_without_a_match_has_no_places_until_it_has_one(lookups: Lookups) -> None:
    lookups.ngram.matches = [False, True, True]  # row 2, which is `r`, has none
    first, second = lookups.run(), lookups.run()
    assert lookups.take_lengths(first) == {"p": 3, "q": 3, "r": 3}, "it is not known yet"
    lookups.note_matches(first)
    assert lookups.take_lengths(second) == {"p": 3, "q": 3}
    lookups.ngram.matches = [True, True, True]
    third, fourth = lookups.run(), lookups.run()
    lookups.note_matches(second)
    assert lookups.take_lengths(third) == {"p": 3, "q": 3}
    lookups.note_matches(third)
    assert lookups.take_lengths(fourth) == {"p": 3, "q": 3, "r": 3}


def test_a_request_with_the_id_of_one_that_has_ended_begins_with_places(lookups: Lookups) -> None:
    lookups.ngram.matches = [False, False, False]
    lookups.note_matches(lookups.run())
    lookups.forget(["q", "unknown"])
    assert lookups.take_lengths(lookups.run()) == {"q": 3}


def test_ids_that_only_pictures_have_are_not_drafted(lookups: Lookups) -> None:
    lookups.runner.req_states.vocab_size = 2
    drafts, _ = lookups.take(lookups.run(), set())
    assert list(drafts["p"]) == [0, 1, 1]


def test_a_proposer_can_leave_a_step_to_the_cpu(
    lookups: Lookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups.ngram, "look_up", lambda tokens, k: None)
    assert lookups.launch(PLAN, (1, 1, 1)) is None
