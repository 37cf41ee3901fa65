"""The proposers of a rank: what is prepared for them, and what they do before they serve."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_adapter.proposers.methods import get_method, parse_spec
from tests.engine_adapter.proposers import heads
from tests.engine_adapter.vllm_engine.support.dispatch_harness import (
    VOCABULARY,
    DispatchHarness,
    EchoProposer,
)

pytestmark = pytest.mark.needs_vllm


class Target:
    """The sizes of the target that the heads of `heads` are made for."""

    hidden_size, vocab_size, dtype = heads.HIDDEN, heads.VOCABULARY, torch.float32
    device = torch.device("cpu")

    def logits(self, hidden: Any) -> Any:
        raise NotImplementedError


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
    assert host.sampling_memory(3) is None
    sampled = {**fields, "num_speculative_tokens": 4, "draft_sampling": "probabilistic"}
    host.specs = (*host.specs, parse_spec(sampled))
    held = host.sampling_memory(3)
    assert held is not None
    assert held.nbytes == (3 * 4 + 4) * 3 * VOCABULARY * 4


def test_a_later_load_needs_its_memory_and_that_of_drafts_that_no_step_was_measured_with(
    harness: DispatchHarness, tmp_path: Path
) -> None:
    host = harness.dispatch.host
    harness.runner.device = torch.device("cpu")
    host._target = Target()  # type: ignore[assignment]
    host._vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=7))
    model = heads.medusa().write(tmp_path)
    fields = {"name": "it", "method": "medusa", "model": model, "num_speculative_tokens": 3}
    greedy = parse_spec(fields)
    sampled = parse_spec({**fields, "draft_sampling": "probabilistic"})
    host.specs = ()
    own = get_method("medusa").device_bytes(greedy, Target(), 7)
    assert host.bytes_needed(greedy) == own > 0
    distributions = 7 * heads.VOCABULARY * 4
    assert host.bytes_needed(sampled) == own + (3 * 3 + 4) * distributions
    # With one that samples shorter drafts, a part of it was held when vLLM measured a step.
    shorter = {**fields, "name": "shorter", "num_speculative_tokens": 2}
    host.specs = (parse_spec({**shorter, "draft_sampling": "probabilistic"}),)
    host.sampling_memory(7)
    assert host.bytes_needed(sampled) == own + 3 * distributions
    assert host.bytes_needed(parse_spec({"name": "ngram"})) == 0


def test_every_draft_model_joins_a_dummy_run(harness: DispatchHarness) -> None:
    host = harness.dispatch.host
    calls: list[Any] = []
    host.draft_models["d"].dummy_run = lambda *given: calls.append(given)  # type: ignore[method-assign]
    host.dummy_run(16, True, False)
    assert calls == [(16, True, False)]
