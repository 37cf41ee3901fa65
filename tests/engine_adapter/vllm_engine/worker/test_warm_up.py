"""What drafts do before the engine serves: on which conditions, and what is held meanwhile."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.warm_up import WarmUpHooks


class Base:
    """The parts of vLLM's runner that the hooks use."""

    def __init__(self) -> None:
        self.uniform_decode_query_len = 5
        self.cudagraph_dispatcher = SimpleNamespace(uniform_decode_query_len=5)
        self.calls: list[Any] = []
        self.held: list[str] = []
        host = SimpleNamespace(
            dummy_run=lambda *given: self.calls.append(given),
            sampling_memory=lambda rows: Memory(self.held, rows),
        )
        self.drafter = SimpleNamespace(host=host)
        self.compilation_config = SimpleNamespace(cudagraph_specialize_lora=True)

    def _dummy_run(self, num_tokens: int, cudagraph_runtime_mode: Any = None, **_: Any) -> str:
        self.calls.append("target")
        return "states"

    def _dummy_sampler_run(self, hidden_states: torch.Tensor) -> Any:
        return list(self.held)


class Memory:
    """Noted while it exists."""

    def __init__(self, held: list[str], rows: int) -> None:
        self._held = held
        held.append(f"{rows} rows")

    def __del__(self) -> None:
        self._held.clear()


class Runner(WarmUpHooks, Base):
    def drafts_run(self, mode: Any, **more: Any) -> tuple[bool, bool]:
        """Whether the drafts' dummy run has graphs, and whether it captures."""
        self.calls.clear()
        assert self._dummy_run(16, cudagraph_runtime_mode=mode, **more) == "states"
        target, (tokens, graphs, capturing) = self.calls
        assert (target, tokens) == ("target", 16)
        return graphs, capturing


@pytest.mark.needs_vllm
def test_drafts_join_a_dummy_run_on_vllms_conditions() -> None:
    none, pieces, whole = (
        getattr(compat.CUDAGraphMode, name) for name in ("NONE", "PIECEWISE", "FULL")
    )
    run = Runner().drafts_run
    assert run(None, is_profile=True) == run(none) == (False, False)
    assert run(pieces) == run(whole) == (True, False)
    assert run(pieces, is_graph_capturing=True) == (True, True)
    assert run(whole, is_graph_capturing=True) == (False, True)
    assert run(pieces, num_active_loras=1) == (False, False)
    assert run(pieces, num_active_loras=0) == (True, False)


def test_once_the_engine_has_started_a_dummy_run_is_the_targets() -> None:
    runner = Runner()
    runner.warms_up_drafts = False
    assert runner._dummy_run(16) == "states"
    assert runner.calls == ["target"]


def test_a_step_of_one_token_a_row_is_a_whole_graph() -> None:
    runner = Runner()
    assert runner.uniform_decode_query_len == 1
    assert runner.cudagraph_dispatcher.uniform_decode_query_len == 1


def test_the_memory_of_sampled_drafts_is_held_while_the_sampler_is_profiled() -> None:
    runner = Runner()
    during: Any = runner._dummy_sampler_run(torch.zeros(3, 2))
    assert during == ["3 rows"]
    assert runner.held == []
