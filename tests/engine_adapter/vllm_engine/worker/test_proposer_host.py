"""The proposers of a rank: what is prepared for them, and what they do before they serve."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_adapter.proposers.methods import parse_spec
from tests.engine_adapter.vllm_engine.support.dispatch_harness import (
    VOCABULARY,
    DispatchHarness,
    EchoProposer,
)

pytestmark = pytest.mark.needs_vllm


@pytest.mark.parametrize(
    ("fields", "prepared"),
    [
        ({"name": "ngram"}, False),
        ({"name": "grammar"}, True),
        ({"name": "mtp"}, True),
        ({"name": "d", "method": "draft_model", "model": "a/b"}, True),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_constraints_are_prepared_for_all_that_draft_with_them(
    harness: DispatchHarness,
    monkeypatch: pytest.MonkeyPatch,
    fields: Mapping[str, Any],
    prepared: bool,
) -> None:
    host = harness.dispatch.host
    calls: list[str] = []
    constraints = SimpleNamespace(prepare=lambda: calls.append("prepare"))
    monkeypatch.setattr(host, "constraints", constraints)
    for name in "draft_model", "draft_head":
        monkeypatch.setattr(host, name, lambda spec: EchoProposer(1))
    host.create(parse_spec(dict(fields)))
    assert bool(calls) == prepared


def test_the_memory_of_sampled_drafts_is_that_of_all_rows_and_the_longest_draft(
    harness: DispatchHarness,
) -> None:
    host = harness.dispatch.host
    harness.runner.device = torch.device("cpu")
    fields = {"name": "d", "method": "draft_model", "model": "a/b"}
    longer = {**fields, "name": "greedy", "num_speculative_tokens": 9}
    host.specs = (parse_spec(longer),)
    assert host.sampling_memory(3) == []
    sampled = {**fields, "num_speculative_tokens": 4, "draft_sampling": "probabilistic"}
    host.specs = (*host.specs, parse_spec(sampled))
    assert [tuple(one.shape) for one in host.sampling_memory(3)] == [(3, 4, VOCABULARY)] * 4


def test_every_draft_model_joins_a_dummy_run(harness: DispatchHarness) -> None:
    host = harness.dispatch.host
    calls: list[Any] = []
    host.draft_models["d"].dummy_run = lambda *given: calls.append(given)  # type: ignore[method-assign]
    host.dummy_run(16, True, False)
    assert calls == [(16, True, False)]
