"""The stages of the GPU check: what each of them runs."""

import json
from pathlib import Path

import pytest

from benchmarks.gpu_check.plan import SPEED_SHARE, CheckPlan, Device, EngineTask, Stage, stages

NGRAM = {"name": "ngram"}


def planned(device: Device, dtype: str = "bfloat16") -> dict[str, Stage]:
    plan = CheckPlan(
        device, "model", [NGRAM], Path("out"), dtype, methods=["none", "ngram"], limit_s=100.0
    )
    return {stage.name: stage for stage in stages(plan)}


def task(stage: Stage) -> EngineTask:
    return EngineTask.from_json(stage.command[-1])


def test_eager_comes_before_graphs_and_waits_after_them() -> None:
    names = ["stock", "eager", "graphs", "invariant", "waits", "speed", "parallel"]
    assert list(planned(Device.CUDA)) == names
    names.remove("invariant")
    assert list(planned(Device.CPU)) == names, "a CPU has no such kernels"


def test_the_engines_differ_only_in_what_the_stage_is_about() -> None:
    made = planned(Device.CUDA)
    eager, graphs, parallel = (
        dict(task(made[name]).arguments) for name in ("eager", "graphs", "parallel")
    )
    assert (eager.pop("enforce_eager"), graphs.pop("enforce_eager")) == (True, False)
    assert eager == graphs
    assert parallel == graphs | {"enforce_eager": False, "tensor_parallel_size": 2}
    assert made["parallel"].devices == 2
    assert "kv_cache_memory_bytes" not in graphs, "a GPU's memory is profiled"
    assert made["waits"].environment == {
        **made["graphs"].environment,
        "VLLM_GPU_SYNC_CHECK": "warn",
    }
    assert made["waits"].rows_of_log is not None


def test_all_engines_are_compared_with_the_same_stock_texts() -> None:
    made = planned(Device.CUDA)
    apart = {"speed", "invariant"}
    texts = {task(stage).stock_texts for name, stage in made.items() if name not in apart}
    assert len(texts) == 1


def test_with_batch_invariant_kernels_no_text_may_differ() -> None:
    by_name = planned(Device.CUDA)
    invariant, graphs = task(by_name["invariant"]), task(by_name["graphs"])
    assert by_name["invariant"].environment["VLLM_BATCH_INVARIANT"] == "1"
    assert (invariant.tie, invariant.stock_texts) == (None, ""), "stock vLLM had other kernels"
    assert invariant.arguments == graphs.arguments


@pytest.mark.parametrize(("dtype", "tie"), [("bfloat16", 0.25), ("float32", 1e-3)])
def test_how_far_a_text_may_be_depends_on_the_dtype(dtype: str, tie: float) -> None:
    assert task(planned(Device.CUDA, dtype)["graphs"]).tie == tie


def test_the_speed_on_a_gpu_is_with_graphs_and_against_stocks_defaults() -> None:
    gpu, cpu = planned(Device.CUDA)["speed"], planned(Device.CPU)["speed"]
    assert {"--graphs", "--stock-defaults"} <= set(gpu.command)
    assert not {"--graphs", "--stock-defaults"} & set(cpu.command)
    assert gpu.limit_s == 100 * SPEED_SHARE
    assert [gpu.command[i + 1] for i, word in enumerate(gpu.command) if word == "--method"] == [
        "none",
        "ngram",
    ]
    assert json.dumps(NGRAM) in gpu.command


def test_ranks_on_a_cpu_need_no_numa_node_each() -> None:
    assert "VLLM_CPU_OMP_THREADS_BIND" in planned(Device.CPU)["parallel"].environment
    made = planned(Device.CUDA)
    assert made["parallel"].environment == made["graphs"].environment


def test_what_vllm_says_of_memory_and_graphs_is_in_the_logs() -> None:
    for name, made in planned(Device.CUDA).items():
        assert name == "speed" or made.environment["VLLM_LOGGING_LEVEL"] == "INFO"


def test_both_servers_of_the_comparison_find_their_share_of_a_gpu_free() -> None:
    # At its start vLLM asks for its share of the whole memory, even with a smaller KV cache.
    words = planned(Device.CUDA)["speed"].command
    share = float(words[words.index("--gpu-memory-utilization") + 1])
    sides = words.count("--side")
    assert sides * share < 1
    assert "--gpu-memory-utilization" not in planned(Device.CPU)["speed"].command


def test_the_arguments_of_the_comparison_are_those_of_its_command() -> None:
    from benchmarks.commands.compare import make_parser

    for stage in planned(Device.CUDA)["speed"], planned(Device.CPU)["speed"]:
        options = make_parser().parse_args(list(stage.command[6:]))
        assert options.side == ["stock", "all"]
