"""The smoke test of proposers: its row, the faults that it finds, and that it leaves no trace."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.methods import parse_specs
from tests.engine_adapter.vllm_engine.support.v2_states import sampler_of

pytestmark = pytest.mark.needs_vllm

VOCABULARY, WIDTH, CONTEXT = 32, 3, 64
STATES = "head.target_states.0"


class Target(torch.nn.Module):
    """A target whose state of a token is its position; it outputs two layers too.

    Its call runs no hooks and no `forward`, like that of a class that vLLM compiles as a whole.
    """

    def __call__(self, count: int) -> Any:
        states = torch.arange(count)[:, None].expand(-1, WIDTH).float()
        return states, [states + 10, states + 20]


class Probe:
    """A proposer that drafts `draw` and records its batches."""

    def __init__(self, draw: Callable[[DraftBatch], Any]) -> None:
        self._draw = draw
        self.batches: list[DraftBatch] = []
        self.forgotten: list[str] = []

    def propose(self, batch: DraftBatch) -> Any:
        self.batches.append(batch)
        return self._draw(batch)

    def forget(self, request_ids: list[str]) -> None:
        self.forgotten += request_ids


def valid(batch: DraftBatch) -> Drafts:
    logits = torch.zeros(len(batch.k), VOCABULARY)
    drawn = [batch.draw(logits, depth) for depth in range(int(batch.k.max()))]
    tokens = torch.stack([token for token, _ in drawn], 1).tolist()
    if batch.sampling is None:
        return Drafts(tokens)
    return Drafts(tokens, list(torch.stack([q for _, q in drawn], 1)))


def breaks(batch: DraftBatch) -> Drafts:
    raise RuntimeError("shape of\n  weights")


class World:
    """A runner and a host of the given proposers, name -> (method, draft, further fields)."""

    def __init__(self, **proposers: tuple[str, Callable[[DraftBatch], Any], dict[str, Any]]):
        from engine_adapter.vllm_engine.worker.drafting.draft_noise import DraftNoise
        from engine_adapter.vllm_engine.worker.smoke_test import ProposerSmokeTest

        specs = parse_specs(
            [{"name": n, "method": method, **more} for n, (method, _, more) in proposers.items()]
        )
        table = SimpleNamespace(block_size=16, get_numpy_array=lambda: np.full((2, 4), 7, np.int32))
        self.target = Target()
        self.own_batch = SimpleNamespace(block_table=SimpleNamespace(block_tables=[table]))
        self.runner: Any = SimpleNamespace(
            max_model_len=CONTEXT,
            device=torch.device("cpu"),
            input_batch=self.own_batch,
            use_aux_hidden_state_outputs=True,
            model=self.target,
            _dummy_run=lambda count, **how: self.runner.model(count),
            draft_noise=DraftNoise(sampler_of(VOCABULARY, [])),
        )
        self.probes = {name: Probe(draw) for name, (_, draw, _) in proposers.items()}
        host: Any = SimpleNamespace(
            specs=specs,
            proposers=self.probes,
            draft_models={},
            aux_layers=(2, 4),
            target=SimpleNamespace(vocab_size=VOCABULARY),
        )
        self.host = host
        self.smoke_test = ProposerSmokeTest(self.runner, host)

    def spec(self, name: str) -> ProposerSpec:
        spec: ProposerSpec = next(spec for spec in self.host.specs if spec.name == name)
        return spec


def test_every_proposer_is_tried_and_each_fault_has_its_reason() -> None:
    world = World(
        good=("ngram", valid, {}),
        breaks=("ngram", breaks, {}),
        foreign=("suffix", lambda batch: Drafts([[VOCABULARY]]), {}),
        last=("suffix", valid, {}),
    )
    faults = world.smoke_test.faults()
    assert faults.keys() == {"breaks", "foreign"}
    assert faults["breaks"] == "RuntimeError: shape of weights"
    assert f"valid ids are in [0, {VOCABULARY})" in faults["foreign"]
    assert len(world.probes["last"].batches) == 1


def test_a_fault_without_a_text_is_described_by_its_line() -> None:
    def asserts(batch: DraftBatch) -> Drafts:
        raise AssertionError

    reason = World(one=("ngram", asserts, {})).smoke_test.faults()["one"]
    assert reason.startswith("AssertionError: raise AssertionError (test_smoke_test.py:")


def test_the_row_is_one_that_a_proposer_gets_in_a_step() -> None:
    world = World(
        heads=("mlp_speculator", valid, {"model": "a/b", "num_speculative_tokens": 5}),
        known=("prediction", valid, {}),
    )
    assert world.smoke_test.faults() == {}
    (batch,) = world.probes["heads"].batches
    assert batch.k.tolist() == [5]
    assert len(batch.context(0)) == int(batch.num_tokens[0])
    assert batch.hidden.tolist() == [[batch.num_tokens[0] - 2.0] * WIDTH], "of the newest token"
    assert batch.num_prompt_tokens.tolist() == batch.num_tokens.tolist(), "nothing was generated"
    with pytest.raises(ValueError, match="read-only"):
        batch.token_ids[0, 0] = 1
    (batch,) = world.probes["known"].batches
    assert batch.hidden is None
    assert batch.predicted is not None
    assert batch.predicted[0] is not None
    assert batch.predicted[0].size > 0


def test_a_proposer_that_samples_is_tried_both_ways_without_the_engines_random_numbers() -> None:
    sampled = {"model": "a/b", "draft_sampling": "probabilistic"}
    world = World(greedy=("medusa", valid, {"model": "a/b"}), samples=("medusa", valid, sampled))
    before = torch.get_rng_state()
    assert world.smoke_test.faults() == {}
    assert torch.equal(torch.get_rng_state(), before)
    assert [batch.sampling is None for batch in world.probes["greedy"].batches] == [True]
    assert [batch.sampling is None for batch in world.probes["samples"].batches] == [True, False]


@pytest.mark.parametrize("draw", [valid, breaks])
def test_nothing_of_the_row_is_left(draw: Callable[[DraftBatch], Any]) -> None:
    from engine_adapter.vllm_engine.worker.smoke_test import SMOKE_TEST_REQUEST

    world = World(one=("ngram", draw, {}))
    world.smoke_test.faults()
    assert world.runner.input_batch is world.own_batch
    assert set(world.probes["one"].forgotten) == {SMOKE_TEST_REQUEST}
    assert world.runner.model is world.target


def test_the_row_has_only_the_null_block() -> None:
    world = World(one=("ngram", valid, {}))
    seen: list[Any] = []

    def look(batch: DraftBatch) -> Drafts:
        table = world.runner.input_batch.block_table[0]
        there = table.get_device_tensor(1).tolist()
        seen.append((table.block_size, table.get_numpy_array()[batch.rows].tolist(), there))
        return Drafts([[]])

    world.probes["one"]._draw = look
    assert world.smoke_test.faults() == {}
    assert seen == [(16, [[0, 0, 0, 0]], [[0, 0, 0, 0]])]


def head(store: Callable[..., None]) -> Any:
    """A head that stores the target's states with `store`."""
    from engine_adapter.vllm_engine.worker.drafting.paged_head import PagedHead

    class Head(PagedHead):
        max_model_len = CONTEXT

        def __init__(self) -> None:
            """It has no model."""

        layer_names = frozenset({STATES})  # type: ignore[assignment]
        store_states = staticmethod(store)  # type: ignore[assignment]

        def forget(self, request_ids: Any) -> None:
            """It has no state."""

    return Head()


def test_a_head_gets_the_targets_states_before_it_drafts() -> None:
    world = World(head=("eagle3", valid, {"model": "a/b"}))
    stored: list[Any] = []
    world.host.draft_models = {"head": head(lambda *given: stored.append(given))}
    assert world.smoke_test.faults() == {}
    ((slots, final, by_layer),) = stored
    assert slots[STATES].tolist() == [0, 1, 2]
    assert final[:, 0].tolist() == [0, 1, 2]
    assert {layer: states[0, 0].item() for layer, states in by_layer.items()} == {2: 10, 4: 20}


def test_a_head_that_the_targets_states_do_not_fit_is_refused_and_not_called() -> None:
    world = World(head=("eagle3", valid, {"model": "a/b"}), ngram=("ngram", valid, {}))
    world.host.draft_models = {"head": head(lambda *given: None)}
    world.host.aux_layers = (2, 3, 4)
    faults = world.smoke_test.faults()
    assert faults.keys() == {"head"}
    assert "zip() argument 2 is shorter" in faults["head"]
    assert world.probes["head"].batches == []
    assert len(world.probes["ngram"].batches) == 1


def test_a_cascade_is_tried_through_its_members() -> None:
    world = World(
        one=("ngram", valid, {}),
        two=("ngram", valid, {}),
        both=("cascade", breaks, {"members": ["one", "two"]}),
    )
    assert world.smoke_test.faults() == {}
    assert world.probes["both"].batches == []


def test_a_proposer_that_is_loaded_later_is_tried_alone() -> None:
    world = World(first=("ngram", valid, {}))
    world.smoke_test.faults()
    (spec,) = parse_specs([{"name": "late", "method": "medusa", "model": "a/b"}])
    late: Any = Probe(valid)
    assert world.smoke_test.fault_of(spec, late) is None
    assert late.batches[0].hidden is not None
    assert len(world.probes["first"].batches) == 1
    assert world.smoke_test.fault_of(spec, Probe(breaks)) == "RuntimeError: shape of weights"  # type: ignore[arg-type]


def test_an_accelerator_error_ends_the_engine() -> None:
    def fails(batch: DraftBatch) -> Drafts:
        raise torch.AcceleratorError("the device is gone")

    with pytest.raises(torch.AcceleratorError):
        World(one=("ngram", fails, {})).smoke_test.faults()


def test_states_of_a_dummy_run_are_numbers_that_a_head_can_read() -> None:
    from engine_adapter.vllm_engine.worker.smoke_test import _bounded

    given = torch.tensor([[float("nan"), float("inf"), -1e30, 0.5]])
    assert _bounded(given).tolist() == [[0.0, 0.0, -1e3, 0.5]]
