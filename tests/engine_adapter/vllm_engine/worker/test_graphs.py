"""Which graphs of the target are captured, and which a step replays."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.wire import SpecgateConfig

pytestmark = pytest.mark.needs_vllm

SIZES, ROWS, CAPACITY = [1, 2, 4, 8, 16, 32], 6, 7
PROPOSERS = [
    {"name": "ngram", "num_speculative_tokens": 5},
    {"name": "small", "method": "draft_model", "model": "m", "num_speculative_tokens": 3},
]


def graphs(mode: str, monkeypatch: pytest.MonkeyPatch, *, varlen: bool = False) -> Any:
    """The manager of an engine's graphs, after the capture: ours, or vLLM's for any length."""
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu import cudagraph_utils

    from engine_adapter.vllm_engine.worker.graphs import PlannedGraphs

    group = SimpleNamespace(is_first_rank=True, is_last_rank=True)
    monkeypatch.setattr(cudagraph_utils, "get_pp_group", lambda: group)
    monkeypatch.setattr(current_platform, "get_global_graph_pool", lambda: None)
    config: Any = SimpleNamespace(
        additional_config=SpecgateConfig(parse_specs(PROPOSERS)).to_additional_config(),
        scheduler_config=SimpleNamespace(max_num_seqs=ROWS),
        compilation_config=SimpleNamespace(
            cudagraph_capture_sizes=SIZES, max_cudagraph_capture_size=SIZES[-1]
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        cache_config=SimpleNamespace(use_kda_recoverssm=False),
        speculative_config=None,
    )
    device: Any = "cpu"
    cudagraph_mode = compat.CUDAGraphMode[mode]
    manager: Any
    if varlen:
        arguments = config, device, cudagraph_mode, CAPACITY + 1
        manager = compat.ModelCudaGraphManager(*arguments, varlen_decode=True)
    else:
        manager = PlannedGraphs(config, device, cudagraph_mode, CAPACITY + 1)
    manager._graphs_captured = True
    assert manager.decode_query_len == CAPACITY + 1
    return manager


def captured(manager: Any) -> dict[str, list[tuple[int, Any]]]:
    """Mode -> the sizes of its graphs, and the length of their rows."""
    return {
        mode.name: [(shape.num_tokens, shape.uniform_token_count) for shape in shapes]
        for mode, shapes in manager._capture_descs.items()
    }


def test_whole_steps_are_captured_for_plain_rows_and_for_those_of_each_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = captured(graphs("FULL_AND_PIECEWISE", monkeypatch))
    assert found["PIECEWISE"] == [(size, None) for size in reversed(SIZES)]
    assert found["FULL"] == [(16, 4), (8, 4), (4, 4), (4, 1), (2, 1), (1, 1)]


def test_a_step_replays_a_whole_graph_if_all_rows_have_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = graphs("FULL_AND_PIECEWISE", monkeypatch)

    def replayed(rows: int, tokens: int, uniform: int | None) -> tuple[str, int]:
        shape = manager.dispatch(rows, tokens, uniform, 0)
        return shape.cg_mode.name, shape.num_tokens

    assert replayed(3, 3, 1) == ("FULL", 4)
    assert replayed(2, 8, 4) == ("FULL", 8)
    assert replayed(3, 12, 4) == ("FULL", 16)
    assert replayed(2, 6, 3) == ("PIECEWISE", 8)  # two drafts each
    assert replayed(2, 5, None) == ("PIECEWISE", 8)  # rows with different numbers of drafts
    assert replayed(4, 4, None) == ("PIECEWISE", 4)  # the end of a prompt
    assert replayed(6, 6, 1) == ("PIECEWISE", 8)  # more rows than any graph of a whole step
    assert replayed(1, 33, None) == ("NONE", 33)


def test_rows_of_different_lengths_replay_a_whole_graph_where_attention_allows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = graphs("FULL_AND_PIECEWISE", monkeypatch, varlen=True)
    sizes = [(size, None) for size in reversed(SIZES)]
    assert captured(manager) == {"PIECEWISE": sizes, "FULL": sizes}

    def replayed(rows: int, tokens: int, uniform: int | None, longest: int | None) -> Any:
        shape = manager.dispatch(rows, tokens, uniform, 0, longest)
        return shape.cg_mode.name, shape.num_tokens

    assert replayed(3, 3, 1, 1) == ("FULL", 4)
    assert replayed(2, 8, 4, 4) == ("FULL", 8)
    assert replayed(2, 5, None, 4) == ("FULL", 8)
    assert replayed(6, 6, 1, 1) == ("FULL", 8)
    assert replayed(2, 8, None, None) == ("PIECEWISE", 8)  # the end of a prompt
    assert replayed(1, 9, None, CAPACITY + 2) == ("PIECEWISE", 16)


@pytest.mark.parametrize("mode", ["FULL", "PIECEWISE"])
def test_graphs_that_fit_every_step_are_captured_once(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = captured(graphs(mode, monkeypatch))
    assert found == {mode: [(size, None) for size in reversed(SIZES)]}
