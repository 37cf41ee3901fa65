"""The runner's hooks: drafts of each row, values handed on between hooks, and refused layers."""

from collections.abc import Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.wire import DraftReport
from engine_adapter.vllm_engine.worker.request_rows import RequestRows
from engine_adapter.vllm_engine.worker.runner import RunnerHooks, StepState
from engine_adapter.vllm_engine.worker.step_drafts import StepDrafts

CAPACITY = 3


class Drafter:
    """A dispatch that drafts what it is given, and keeps what it was asked."""

    def __init__(self, drafts: dict[int, list[int]]) -> None:
        self.drafts = drafts
        self.host = SimpleNamespace(heads=["a head"])
        self.stored: list[torch.Tensor] = []
        self.step: Any = None

    def store_states(self, slots: Any, final: torch.Tensor, auxiliary: Any) -> None:
        self.stored = [final, *auxiliary]

    def propose(self, plan: Any, step: Any) -> tuple[list[list[int]], DraftReport]:
        self.step = step
        return [self.drafts.get(row, []) for row in range(len(step.num_sampled))], DraftReport()


class Hooked(RunnerHooks):
    def __init__(self, drafts: dict[int, list[int]], plan: Any) -> None:
        self.device = torch.device("cpu")
        self._capacity = CAPACITY
        states = SimpleNamespace(
            max_num_reqs=4,
            max_model_len=16,
            req_id_to_index={"a": 2, "b": 0},
            index_to_req_id={2: "a", 0: "b"},
            num_computed_tokens_np=np.zeros(4, np.int32),
        )
        self._drafts = StepDrafts(self, CAPACITY)
        self.input_batch = RequestRows(states)
        self.drafter: Any = Drafter(drafts)
        scheduled = SimpleNamespace(specgate_plan=plan, num_scheduled_tokens={"a": 2, "b": 1})
        self._step = StepState(scheduled, emitted=torch.tensor([[5, 6], [7, 0]]))


def step_of_a_and_b() -> Any:
    """vLLM's `InputBatch` of a step in which `a`, in row 2, verifies one draft, and `b` none."""
    return SimpleNamespace(
        req_ids=["a", "b"],
        idx_mapping_np=np.array([2, 0]),
        num_tokens=3,
        logits_indices=torch.tensor([0, 1, 2]),
        cu_num_logits_np=np.array([0, 2, 3]),
    )


def draft(runner: Hooked) -> torch.Tensor:
    hidden = torch.arange(8.0).view(4, 2)  # the last row is padding
    return runner.draft(
        step_of_a_and_b(), {}, hidden, [hidden], (torch.tensor([2, 1]), torch.tensor([0, 0]))
    )


@pytest.mark.needs_vllm
def test_each_row_gets_its_own_drafts() -> None:
    runner = Hooked({2: [1, 2], 0: []}, {"a": 1})
    assert draft(runner).tolist() == [[1, 2, 0], [0, 0, 0]]
    given = runner.take_draft_token_ids()
    assert isinstance(given, compat.DraftTokenIds)
    assert (given.req_ids, given.draft_token_ids) == (["a"], [[1, 2]])
    runner._drafts.begin_step(None)
    assert runner.take_draft_token_ids() is None


def test_dispatch_sees_the_tokens_and_states_of_each_row() -> None:
    runner = Hooked({}, {"a": 1})
    draft(runner)
    step = runner.drafter.step
    assert step.num_sampled.tolist() == [1, 0, 2, 0]
    assert runner.input_batch.num_tokens_no_spec.tolist() == [1, 0, 2, 0]
    assert step.last_hidden(np.array([2, 0])).tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert [len(states) for states in runner.drafter.stored] == [3, 3]


def test_a_step_without_drafts_gives_the_scheduler_none() -> None:
    runner = Hooked({}, {"a": 1})
    draft(runner)
    assert runner.take_draft_token_ids() is None


def test_a_step_without_a_plan_asks_no_proposer_and_follows_the_tokens() -> None:
    runner = Hooked({2: [1]}, None)
    assert not draft(runner).any()
    assert runner.drafter.step is None
    assert runner.take_draft_token_ids() is None
    assert runner.input_batch.num_tokens_no_spec.tolist() == [1, 0, 2, 0]


def test_the_report_leaves_with_the_output_of_its_step() -> None:
    class Sampled(Hooked):
        def sample_tokens(self, grammar_output: Any) -> Any:
            return super().sample_tokens(grammar_output)

    class Base:
        def sample_tokens(self, grammar_output: Any) -> Any:
            return SimpleNamespace(model_runner_output=SimpleNamespace())

    class Runner(Sampled, Base): ...

    runner = Runner({}, {"a": 1})
    runner._drafts.report = report = DraftReport()
    assert runner.sample_tokens(None).model_runner_output.specgate_report is report
    runner._drafts.report = None
    assert not hasattr(runner.sample_tokens(None).model_runner_output, "specgate_report")


@pytest.mark.parametrize(
    ("models", "sizes", "fits"), [(1, [32], True), (1, [16], False), (0, [16], True)]
)
def test_blocks_of_another_size_end_the_start_with_a_draft_model(
    models: int, sizes: list[int], fits: bool
) -> None:
    told: list[tuple[str, str]] = []
    progress = SimpleNamespace(refuse=lambda setting, reason: told.append((setting, reason)))
    runner: Any = Hooked({}, None)
    runner.drafter.host = SimpleNamespace(
        draft_models=dict.fromkeys(range(models)), progress=progress
    )
    group = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=32))
    runner.kv_cache_config = SimpleNamespace(kv_cache_groups=[group])
    runner.kernel_block_sizes = sizes
    if fits:
        runner._check_blocks()
    else:
        with pytest.raises(SystemExit):
            runner._check_blocks()
    assert [setting for setting, _ in told] == ([] if fits else ["block_size"])


class WithSpecs:
    """A runner with layers of vLLM's classes of these names, beside attention."""

    def __init__(self, layers: Mapping[str, str]) -> None:
        kinds = {name: type(kind, (), {})() for name, kind in layers.items()}
        self.compilation_config = SimpleNamespace(static_forward_context=kinds)
        self.refused: list[tuple[str, str]] = []
        progress = SimpleNamespace(refuse=lambda *why: self.refused.append(why))
        host = SimpleNamespace(progress=progress, kept_specs=lambda specs: {})
        self.drafter: Any = SimpleNamespace(host=host)

    def get_kv_cache_spec(self) -> dict[str, Any]:
        backends = import_module("vllm.v1.attention.backends.registry").MambaAttentionBackendEnum
        state = compat.MambaSpec(
            block_size=64, shapes=((4, 8),), dtypes=(torch.float32,), mamba_type=backends.MAMBA2
        )
        attention = compat.FullAttentionSpec(
            block_size=32, num_kv_heads=1, head_size=8, dtype=torch.bfloat16
        )
        names = self.compilation_config.static_forward_context
        return {**dict.fromkeys(names, state), "attention": attention}


class Loaded(RunnerHooks, WithSpecs):
    """A runner whose target is loaded, with the hooks."""

    def __init__(self, layers: Mapping[str, str]) -> None:
        WithSpecs.__init__(self, layers)


@pytest.mark.needs_vllm
def test_loaded_layers_whose_state_follows_drafts_are_accepted() -> None:
    runner = Loaded({"a": "MambaMixer2", "b": "ShortConv"})
    assert set(runner.get_kv_cache_spec()) == {"a", "b", "attention"}


@pytest.mark.needs_vllm
def test_a_loaded_layer_that_the_gateway_did_not_know_ends_the_start() -> None:
    runner = Loaded({"a": "MambaMixer2", "b": "MambaMixer"})
    with pytest.raises(SystemExit):
        runner.get_kv_cache_spec()
    ((setting, reason),) = runner.refused
    assert setting == "model"
    assert "MambaMixer: it never reads" in reason
