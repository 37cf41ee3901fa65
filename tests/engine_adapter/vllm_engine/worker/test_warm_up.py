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

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.device = torch.device("cpu")
        model = SimpleNamespace(set_cudagraph_mode=lambda mode: self.calls.append(mode))
        host = SimpleNamespace(
            draft_models={"draft": model},
            dummy_run=lambda tokens, graphs: self.calls.append((tokens, graphs)),
        )
        self.drafter = SimpleNamespace(host=host)
        self.compilation_config = SimpleNamespace(cudagraph_capture_sizes=[1, 4])

    def execute_model(self, scheduler_output: Any) -> Any:
        return scheduler_output.specgate_plan


class Runner(WarmUpHooks, Base):
    """A runner with one draft model."""


@pytest.mark.needs_vllm
@pytest.mark.parametrize(("mode", "captured"), [("FULL_AND_PIECEWISE", True), ("NONE", False)])
def test_drafts_are_captured_if_the_target_has_graphs_of_pieces(
    mode: str, captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine_adapter.vllm_engine.worker.speculator import PlannedSpeculator

    runner, scopes = Runner(), []

    @contextmanager
    def graph_capture(device: torch.device) -> Any:
        scopes.append(device)
        yield

    monkeypatch.setattr(compat.parallel_state, "graph_capture", graph_capture)
    chosen = compat.CUDAGraphMode[mode]
    speculator = PlannedSpeculator(runner, 3)
    speculator.init_cudagraph_manager(chosen)
    speculator.capture()
    each = [(size, graphs) for size in (4, 1) for graphs in (False, True)]
    assert runner.calls == [chosen, *(each if captured else ())]
    assert scopes == ([runner.device] if captured else [])


def test_a_step_of_vllms_own_has_an_empty_plan() -> None:
    own: Any = SimpleNamespace()
    assert Runner().execute_model(own) == StepPlan()
    assert (own.specgate_quarantined, own.specgate_constraints) == (frozenset(), {})
    planned = SimpleNamespace(specgate_plan="a plan")
    assert Runner().execute_model(planned) == "a plan"
