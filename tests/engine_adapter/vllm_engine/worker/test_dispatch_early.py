"""Which rows a model drafts for before the tokens of their step are read."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.policies.contract import StepPlan
from engine_adapter.seam.types import SpecMethod
from tests.engine_adapter.vllm_engine.support.dispatch_harness import (
    CONTEXT,
    DispatchHarness,
    idle_sampler,
    output,
)

pytestmark = pytest.mark.needs_vllm

EARLY = SpecMethod("d", 3)
LENGTH = 10
"""Committed tokens of every row before the step."""


class Model:
    """Takes a draft model's place; records the early calls."""

    max_model_len = CONTEXT
    drafts_early = True
    reads_images = False

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], list[int], list[int]]] = []
        self.error: Exception | None = None

    def draft_early(self, batch: Any, step: Any) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append((list(batch.request_ids), batch.k.tolist(), step.source.tolist()))


@pytest.fixture
def model(harness: DispatchHarness) -> Model:
    """The model of `d`, whose three rows `p`, `q` and `r` are in steady state."""
    made = Model()
    harness.dispatch.host.draft_models["d"] = made  # type: ignore[assignment]
    names = ["p", "q", "r"]
    params = SimpleNamespace(structured_outputs=None)
    harness.runner.requests = {
        name: SimpleNamespace(sampling_params=params, mm_features=[]) for name in names
    }
    harness.runner.row_options = lambda batch, samples: SimpleNamespace(are_idle=True)
    harness.runner.sampler = idle_sampler()
    harness.runner.input_batch = SimpleNamespace(
        req_ids=names,
        req_id_to_index={name: i for i, name in enumerate(names)},
        num_tokens_no_spec=np.full(3, LENGTH, np.int32),
        num_prompt_tokens=np.full(3, 2, np.int32),
        num_computed_before=lambda rows: np.full(len(rows), LENGTH - 1, np.int32),
        token_ids_cpu=np.zeros((3, CONTEXT), np.int32),
        temperature_cpu=np.zeros(3, np.float32),
    )
    return made


def unread_step(num_read: tuple[int, ...] = (3, 3, 3)) -> Any:
    """A step that verifies two drafts of each row."""
    from engine_adapter.vllm_engine.worker.drafting.early_drafts import UnreadStep

    return UnreadStep(
        np.array([2, 0, 1]),
        np.array(num_read),
        np.full(3, 2),
        torch.zeros(3, 3, dtype=torch.int64),
        np.arange(3),
        torch.zeros(3, dtype=torch.int32),
    )


def propose(
    harness: DispatchHarness, plan: Any = None, num_read: tuple[int, ...] = (3, 3, 3)
) -> Any:
    """After a step the dispatch may draft."""
    step = unread_step(num_read)
    harness.dispatch.propose_early(StepPlan(plan or dict.fromkeys("pqr", EARLY)), step)


def test_all_rows_of_a_model_draft_in_the_order_of_the_step(
    harness: DispatchHarness, model: Model
) -> None:
    propose(harness)
    assert model.calls == [(["r", "p", "q"], [3, 3, 3], [0, 1, 2])]


@pytest.mark.parametrize(
    "plan",
    [
        {"p": EARLY, "q": SpecMethod("a", 3), "r": EARLY},
        {"p": EARLY, "q": SpecMethod("d", 0), "r": EARLY},
        {"p": EARLY, "r": EARLY},
    ],
    ids=["another proposer", "no draft", "no plan"],
)
def test_other_rows_are_left_out(harness: DispatchHarness, model: Model, plan: Any) -> None:
    propose(harness, plan)
    assert model.calls == [(["r", "p"], [3, 3], [0, 1])]


def test_a_row_in_the_middle_of_its_prompt_waits(harness: DispatchHarness, model: Model) -> None:
    propose(harness, num_read=(3, 2, 3))
    assert model.calls == [(["r", "q"], [3, 3], [0, 2])]


def test_a_row_with_structured_output_waits(harness: DispatchHarness, model: Model) -> None:
    constrained = SimpleNamespace(structured_outputs={"json": {}})
    harness.runner.requests["p"] = SimpleNamespace(sampling_params=constrained, mm_features=[])
    propose(harness)
    assert model.calls == [(["r", "q"], [3, 3], [0, 2])]


def test_a_row_with_a_picture_that_the_model_cannot_read_is_left_out(
    harness: DispatchHarness, model: Model
) -> None:
    harness.runner.requests["p"].mm_features = ["a picture"]
    propose(harness)
    assert model.calls == [(["r", "q"], [3, 3], [0, 2])]


def test_a_row_with_options_waits_and_the_others_do_not(
    harness: DispatchHarness, model: Model
) -> None:
    harness.runner.row_options = lambda batch, samples: SimpleNamespace(
        are_idle="q" not in batch.request_ids
    )
    propose(harness)
    assert model.calls == [(["r", "p"], [3, 3], [0, 1])]


def test_a_row_that_samples_its_drafts_waits(harness: DispatchHarness, model: Model) -> None:
    harness.dispatch.sampled_drafts._uses_block["d"] = False
    harness.runner.input_batch.temperature_cpu[0] = 0.7
    propose(harness)
    assert model.calls == [(["r", "q"], [3, 3], [0, 2])]


def test_rows_of_a_proposer_with_a_gate_wait(harness: DispatchHarness, model: Model) -> None:
    harness.dispatch.sampled_drafts._thresholds["d"] = 0.5
    propose(harness)
    assert model.calls == []


def test_a_row_near_the_end_of_the_context_waits(harness: DispatchHarness, model: Model) -> None:
    lengths = harness.runner.input_batch.num_tokens_no_spec
    # Two drafts are verified, one token more is emitted, and three are drafted.
    lengths[0], lengths[1] = CONTEXT - 5, CONTEXT - 6
    harness.runner.input_batch.num_computed_before = lambda rows: lengths[rows] - 1
    propose(harness)
    assert model.calls == [(["r", "q"], [3, 3], [0, 2])]


def test_a_quarantined_proposer_is_not_asked(harness: DispatchHarness, model: Model) -> None:
    harness.dispatch.host.draft_models = {}
    harness.dispatch.observe(output(specgate_quarantined=frozenset({"d"})))
    harness.dispatch.host.draft_models = {"d": model}  # type: ignore[dict-item]
    propose(harness)
    assert model.calls == []


def test_a_fault_is_in_the_report_of_the_step(harness: DispatchHarness, model: Model) -> None:
    model.error = ZeroDivisionError("its own mistake")
    propose(harness)
    assert harness.dispatch._report.faults == {"d": "ZeroDivisionError: its own mistake"}


class Lookup:
    """A proposer that looks up on the device."""

    error: Exception | None = None

    def forget(self, request_ids: Any) -> None:
        """It has no state."""

    def look_up(self, tokens: Any, k: int) -> Any:
        if self.error is not None:
            raise self.error
        return torch.ones(3, k, dtype=torch.int64), torch.ones(3, dtype=torch.bool)


@pytest.fixture
def lookup(harness: DispatchHarness, model: Model) -> Lookup:
    """The lookup `a`, for the rows of `model`."""
    proposer = Lookup()
    harness.dispatch.host.proposers["a"] = proposer  # type: ignore[assignment]
    harness.runner.req_states = SimpleNamespace(
        all_token_ids=SimpleNamespace(gpu=torch.zeros(3, CONTEXT, dtype=torch.int32)),
        total_len=SimpleNamespace(gpu=torch.full((3,), LENGTH, dtype=torch.int32)),
        draft_tokens=torch.zeros(3, 4, dtype=torch.int64),
        vocab_size=9,
    )
    return proposer


def look_up(harness: DispatchHarness, plan: Any) -> Any:
    step = unread_step()
    return harness.dispatch.look_up_early(StepPlan(plan), step, torch.from_numpy(step.rows))


def test_the_device_looks_up_for_a_step_of_one_lookup(
    harness: DispatchHarness, lookup: Lookup
) -> None:
    looked_up = look_up(harness, dict.fromkeys("pqr", SpecMethod("a", 2)))
    assert {name: list(row) for name, row in looked_up.drafts.items()} == {
        "p": [1, 1],
        "q": [1, 1],
        "r": [1, 1],
    }
    assert look_up(harness, {"p": SpecMethod("a", 2), "q": EARLY}) is None


def test_a_fault_on_the_device_is_reported_and_the_drafts_are_made_later(
    harness: DispatchHarness, lookup: Lookup
) -> None:
    lookup.error = ZeroDivisionError("its own mistake")
    assert look_up(harness, {"p": SpecMethod("a", 2)}) is None
    assert harness.dispatch._report.faults == {"a": "ZeroDivisionError: its own mistake"}


def test_a_lost_device_ends_the_engine(harness: DispatchHarness, lookup: Lookup) -> None:
    lookup.error = torch.AcceleratorError("lost")
    with pytest.raises(torch.AcceleratorError):
        look_up(harness, {"p": SpecMethod("a", 2)})


def test_the_dispatch_forgets_what_a_lookup_noted_of_ended_requests(
    harness: DispatchHarness, lookup: Lookup
) -> None:
    harness.dispatch.host.draft_models = {}
    harness.dispatch.lookups._unmatched |= {"p", "q"}
    harness.dispatch.observe(output(finished_req_ids={"p"}))
    assert harness.dispatch.lookups._unmatched == {"q"}
