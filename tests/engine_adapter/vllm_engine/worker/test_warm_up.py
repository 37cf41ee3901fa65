"""What drafts do before the engine serves."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_adapter.policies.contract import StepPlan
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.warm_up import WarmUpHooks


class Base:
    """The parts of vLLM's runner that the hooks use."""

    _capacity, max_num_tokens = 5, 64

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.device = torch.device("cpu")
        self.parallel_config = SimpleNamespace(world_size=1)
        model = SimpleNamespace(
            set_cudagraph_mode=lambda mode: self.calls.append(mode),
            capture_passes=lambda: self.calls.append("passes"),
            drop_passes=lambda: self.calls.append("dropped"),
        )
        host = SimpleNamespace(
            draft_models={"draft": model},
            dummy_run=lambda tokens, graphs: self.calls.append((tokens, graphs)),
            sampling_memory=lambda rows: Memory(self.reserved, rows),
            target=SimpleNamespace(vocab_size=1000),
        )
        self.reserved: list[str] = []
        self.drafter = SimpleNamespace(host=host)
        self.compilation_config = SimpleNamespace(cudagraph_capture_sizes=[1, 4])

    def capture_model(self, *, profile_only: bool = False) -> int:
        return 7

    def execute_model(self, scheduler_output: Any) -> Any:
        return scheduler_output.specgate_plan

    def _dummy_sampler_run(self, hidden_states: torch.Tensor) -> Any:
        return list(self.reserved)


class Memory:
    """Noted while it exists."""

    def __init__(self, reserved: list[str], rows: int) -> None:
        self._reserved = reserved
        reserved.append(f"{rows} rows")

    def __del__(self) -> None:
        self._reserved.clear()


class Runner(WarmUpHooks, Base):
    """A runner with one draft model."""


@pytest.mark.needs_vllm
@pytest.mark.parametrize(
    ("mode", "passes", "pieces"),
    [
        ("FULL_AND_PIECEWISE", True, True),
        ("FULL_DECODE_ONLY", True, False),
        ("PIECEWISE", False, True),
        ("NONE", False, False),
    ],
)
def test_drafts_have_the_graphs_that_the_target_has(
    mode: str, passes: bool, pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine_adapter.vllm_engine.worker.speculator import PlannedSpeculator

    runner, scopes = Runner(), []

    @contextmanager
    def graph_capture(device: torch.device) -> Any:
        scopes.append(device)
        yield

    monkeypatch.setattr(compat.parallel_state, "graph_capture", graph_capture)
    graph_mode = compat.CUDAGraphMode[mode]
    speculator = PlannedSpeculator(runner, 3)
    speculator.init_cudagraph_manager(graph_mode)
    speculator.capture()
    each = [(size, graphs) for size in (4, 1) for graphs in (False, True)]
    of_passes = ["passes"] if passes else []
    assert runner.calls == [graph_mode, *of_passes, *(each if pieces else ())]
    assert scopes == ([runner.device] if pieces else [])


def test_graphs_of_the_profile_are_dropped() -> None:
    runner = Runner()
    assert runner.capture_model(profile_only=True) == 7
    assert runner.capture_model() == 7
    assert runner.calls == ["dropped"]


@pytest.mark.needs_vllm
def test_drafts_join_a_dummy_run_until_the_engine_has_started() -> None:
    from engine_adapter.vllm_engine.worker.speculator import PlannedSpeculator

    runner: Any = Runner()

    def dummy_run() -> Any:
        nothing: Any = None
        return PlannedSpeculator(runner, 3).propose(
            SimpleNamespace(num_tokens=16, num_reqs=2),
            *(nothing, nothing, nothing, nothing),
            torch.ones(2, dtype=torch.int32),
            torch.zeros(2, dtype=torch.int32),
            dummy_run=True,
        )

    assert dummy_run().tolist() == [[0] * 3] * 2
    assert runner.calls == [(16, False)]
    runner.warms_up_drafts = False
    dummy_run()
    assert len(runner.calls) == 1


def test_the_memory_of_sampled_drafts_is_held_while_the_sampler_is_measured() -> None:
    runner: Any = Runner()
    assert runner._dummy_sampler_run(torch.zeros(7, 2)) == ["7 rows"]
    assert runner.reserved == []


def test_a_step_of_vllms_own_has_an_empty_plan() -> None:
    own: Any = SimpleNamespace()
    assert Runner().execute_model(own) == StepPlan()
    assert (own.specgate_quarantined, own.specgate_constraints) == (frozenset(), {})
    planned = SimpleNamespace(specgate_plan="a plan")
    assert Runner().execute_model(planned) == "a plan"


@pytest.mark.parametrize(
    ("of_attention", "of_state", "any_length"),
    [
        ("ALWAYS", "ALWAYS", True),
        ("UNIFORM_BATCH", "ALWAYS", False),
        ("ALWAYS", "UNIFORM_BATCH", False),
    ],
)
def test_the_target_has_graphs_for_rows_of_any_length_where_all_of_it_allows_them(
    of_attention: str, of_state: str, any_length: bool
) -> None:
    support, runner = compat.AttentionCGSupport, Runner()
    builder = SimpleNamespace(get_cudagraph_support=lambda *_: support[of_attention])
    group = SimpleNamespace(get_metadata_builder=lambda: builder, kv_cache_spec=None)
    runner.attn_groups, runner.vllm_config = [[group]], None
    runner.model_state = SimpleNamespace(
        get_additional_cg_support=lambda: (support[of_state], None)
    )
    assert runner._replays_any_lengths() is any_length
