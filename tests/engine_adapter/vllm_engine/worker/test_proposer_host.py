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
        raise AssertionError("only the sizes of this target are read")


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
    assert held.nbytes == (4 * 4 + 5) * 3 * VOCABULARY * 4


DISTRIBUTIONS = 7 * heads.VOCABULARY * 4
"""Bytes of one for each of 7 rows."""


@pytest.fixture
def loading(harness: DispatchHarness) -> Any:
    """The host of an engine on a GPU that serves at most 7 rows, without a proposer."""
    host = harness.dispatch.host
    harness.runner.device = torch.device("meta")
    host._target = Target()  # type: ignore[assignment]
    host._vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=7))
    host.specs = ()
    return host


def medusa(folder: Path, k: int, sampling: str = "probabilistic") -> Any:
    folder.mkdir(exist_ok=True)
    fields = {"method": "medusa", "model": heads.medusa().write(folder), "draft_sampling": sampling}
    return parse_spec({"name": f"{sampling}{k}", "num_speculative_tokens": k, **fields})


def test_a_later_load_needs_its_memory_and_that_of_longer_drafts_than_the_loaded_ones(
    loading: Any, tmp_path: Path
) -> None:
    greedy, longer = medusa(tmp_path, 3, "greedy"), medusa(tmp_path, 3)
    own = get_method("medusa").device_bytes(greedy, Target(), 7)
    ngram = parse_spec({"name": "ngram"})
    assert own > 0
    assert loading.room_for(greedy, 50) == (own, 50)
    assert loading.room_for(longer, 50) == (own + (4 * 3 + 5) * DISTRIBUTIONS, 50)
    # With one that samples shorter drafts, a part of it was held when vLLM measured a step.
    loading.specs = (medusa(tmp_path, 2),)
    loading.sampling_memory(7)
    assert loading.room_for(longer, 50) == (own + 4 * DISTRIBUTIONS, 50)
    assert loading.room_for(ngram, 50) == (0, 50)
    # What a later one samples stays free for the steps, and is not needed again by the next load.
    loading.specs = (*loading.specs, longer)
    assert loading.room_for(ngram, 50) == (0, 50 + 4 * DISTRIBUTIONS)
    # What was held for a proposer that is gone is there for the next.
    loading.specs = ()
    assert loading.room_for(medusa(tmp_path, 2), 50) == (own - 7 * heads.VOCABULARY * 4, 50)


def test_what_was_held_in_a_step_that_vllm_did_not_measure_is_not_there(
    loading: Any, tmp_path: Path
) -> None:
    loading.specs = (medusa(tmp_path, 2),)
    loading.sampling_memory(7)
    longer = medusa(tmp_path, 3)
    own = get_method("medusa").device_bytes(longer, Target(), 7)
    expected = own + 4 * DISTRIBUTIONS, (4 * 2 + 5) * DISTRIBUTIONS
    assert loading.room_for(longer, None) == expected
    assert loading.room_for(parse_spec({"name": "ngram"}), None) == (0, expected[1])


def test_on_a_cpu_a_later_load_needs_its_weights_only(loading: Any, tmp_path: Path) -> None:
    loading._runner.device = torch.device("cpu")
    sampled = medusa(tmp_path, 3)
    weights = 4 * sum(tensor.numel() for tensor in heads.medusa().tensors.values())
    for specs in (), (medusa(tmp_path, 2),):
        # No step is measured on a CPU, so that `sampling_memory` is never called.
        loading.specs = specs
        assert loading.room_for(sampled, None) == (weights, 0)
        assert loading.room_for(parse_spec({"name": "ngram"}), None) == (0, 0)


def test_every_draft_model_joins_a_dummy_run(harness: DispatchHarness) -> None:
    host = harness.dispatch.host
    calls: list[Any] = []
    host.draft_models["d"].dummy_run = lambda *pair: calls.append(pair)  # type: ignore[method-assign]
    host.dummy_run(16, graphs=True)
    assert calls == [(16, True)]
