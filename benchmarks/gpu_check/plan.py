"""What is checked: the plan, and the stages that it has."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.waits import CHECK, waits_in

TIES: Mapping[str, float] = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.05}
"""Dtype -> the most by which a greedy token may be less likely than the likeliest one, in log
probability. Rows of other lengths go through other kernels, which round differently: a logit
between 8 and 16 has steps of 0.06 in bfloat16, and two logits may each move by some of them."""

ARGUMENTS: Mapping[str, Any] = {"max_model_len": 2048, "max_num_seqs": 16, "block_size": 32}
"""vLLM's arguments of every engine."""

LOGGED: Mapping[str, str] = {"VLLM_LOGGING_LEVEL": "INFO"}
"""The variable with which vLLM's log has memory, compilation and graphs."""

GPU_SHARE = 0.4
"""The part of a GPU that each server of the comparison may have: two run at the same time. vLLM
refuses to start if so much is not free, even with a KV cache of a given size."""

STOCK_READING = "Nothing of Specgate runs here: if it fails, vLLM does not run on this machine."

WAITS_READING = (
    "How often the CPU waited for the device, divided by the steps of the run, and at which lines. "
    "The section `Waiting for the device` of docs/lab/gpu.md has how often Specgate has to. "
    "Without a GPU vLLM counts nothing."
)

INVARIANT_READING = (
    "With these kernels a token does not depend on the other rows of its step, nor on how many "
    "positions a row verifies, so no text may differ from that of the row `none`. Sampled texts "
    "are not compared."
)

SPEED_SHARE = 3
"""How much longer than other stages the comparison of speed may take."""

STOCK_TEXTS = "stock-texts.json"
"""The texts of stock vLLM, in the folder of the report; absent if its stage failed."""


class Device(StrEnum):
    """Where the models run."""

    CUDA = "cuda"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """What to check.

    Attributes:
        target: path or id of the model.
        proposers: as `--proposer` takes them.
        out: folder of the report, the logs and the results of the stages.
        prompts: how many of the demo's prompts every method gets.
        max_tokens: length of every answer.
        pairs: rounds of the comparison with stock vLLM.
        concurrency: its numbers of concurrent streams.
        methods: the proposers whose speed is compared, and `none`.
        limit_s: time of a stage, in seconds. The comparison of speed has `SPEED_SHARE` times that:
            it starts two servers twice for each method.
    """

    device: Device
    target: str
    proposers: Sequence[Mapping[str, Any]]
    out: Path
    dtype: str = "bfloat16"
    prompts: int = 12
    max_tokens: int = 96
    pairs: int = 10
    concurrency: Sequence[int] = (1, 8)
    methods: Sequence[str] = ()
    limit_s: float = 900.0


@dataclass(frozen=True, slots=True)
class EngineTask:
    """What a process does with one engine; it crosses to the process as JSON.

    Attributes:
        arguments: of the engine, by vLLM's names.
        tie: see `TIES`; `None` if no text may differ.
        stock_texts: the file of stock vLLM's texts, written or compared with; empty for none.
        result: the file that gets the result.
    """

    target: str
    proposers: Sequence[Mapping[str, Any]]
    arguments: Mapping[str, Any]
    prompts: int
    max_tokens: int
    tie: float | None
    stock_texts: str
    result: str

    @property
    def texts_of(self) -> dict[str, Any]:
        """What stock vLLM's texts depend on, to be kept beside them."""
        dtype = self.arguments.get("dtype")
        return {
            "target": self.target,
            "dtype": dtype,
            "prompts": self.prompts,
            "max_tokens": self.max_tokens,
        }

    def to_json(self) -> str:
        """For the process's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "EngineTask":
        """The inverse of `to_json`."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the check, in a process of its own.

    Attributes:
        purpose: what it shows, for the report.
        command: of the process; it writes `result`.
        result: a JSON file with `rows` and `problems`.
        environment: variables that the process gets in addition.
        devices: how many it needs.
        limit_s: its time, in seconds.
        rows_of_log: makes the report's rows from what it prints, instead of those of `result`.
        reading: how to read the rows, for the report.
    """

    name: str
    purpose: str
    command: Sequence[str]
    result: Path
    limit_s: float
    environment: Mapping[str, str] = field(default_factory=dict)
    devices: int = 1
    rows_of_log: Callable[[Iterable[str]], list[dict[str, Any]]] | None = None
    reading: str = ""


def stages(plan: CheckPlan) -> list[Stage]:
    """The stages, in the order in which a GPU should meet them."""
    eager = {"enforce_eager": True}
    graphs = {"enforce_eager": False}
    exact = _exactness(plan)
    compiled = f"What fails here and not in `eager` is compiled code or a graph. {exact}"
    return [
        _engine_stage(
            *(plan, "stock", "stock vLLM's greedy texts, to compare with", STOCK_READING, eager),
            module="stock_stage",
        ),
        _engine_stage(plan, "eager", "exactness of every proposer, without graphs", exact, eager),
        _engine_stage(
            plan, "graphs", "exactness with compiled models and graphs", compiled, graphs
        ),
        *([_invariant_stage(plan, graphs)] if plan.device is Device.CUDA else []),
        _engine_stage(
            *(plan, "waits", "where a step waits for the device, as vLLM counts it"),
            *(WAITS_READING, graphs),
            environment={CHECK: "warn"},
            rows_of_log=waits_in,
        ),
        _speed_stage(plan),
        _engine_stage(
            *(plan, "parallel", "exactness over two devices", exact),
            {**graphs, "tensor_parallel_size": 2},
            environment=_of_two_ranks(plan),
            devices=2,
        ),
    ]


def _invariant_stage(plan: CheckPlan, graphs: Mapping[str, Any]) -> Stage:
    return _engine_stage(
        *(plan, "invariant", "exactness to the bit, with vLLM's batch-invariant kernels"),
        INVARIANT_READING,
        graphs,
        environment={"VLLM_BATCH_INVARIANT": "1"},
        tie=None,
        stock_texts="",
    )


def _exactness(plan: CheckPlan) -> str:
    return (
        "`same texts` are equal to those of the row `none`, and the row `none` to stock vLLM's. "
        "The others may differ where two tokens are almost equally likely: `largest gap` is by how "
        f"much, in log probability, and up to {TIES[plan.dtype]:g} it is rounding. Sampled texts "
        "are not compared. A model of whose drafts none is accepted reads something wrong."
    )


def _of_two_ranks(plan: CheckPlan) -> Mapping[str, str]:
    # vLLM gives each rank on a CPU a NUMA node, of which most machines have one.
    return {"VLLM_CPU_OMP_THREADS_BIND": "nobind"} if plan.device is Device.CPU else {}


def _engine_stage(
    plan: CheckPlan,
    name: str,
    purpose: str,
    reading: str,
    arguments: Mapping[str, Any],
    module: str = "engine_stage",
    **more: Any,
) -> Stage:
    result = plan.out / f"{name}.json"
    environment = {**LOGGED, **more.pop("environment", {})}
    task = EngineTask(
        target=plan.target,
        proposers=plan.proposers,
        arguments={**ARGUMENTS, "dtype": plan.dtype, **_memory(plan), **arguments},
        prompts=plan.prompts,
        max_tokens=plan.max_tokens,
        tie=more.pop("tie", TIES[plan.dtype]),
        stock_texts=more.pop("stock_texts", str(plan.out / STOCK_TEXTS)),
        result=str(result),
    )
    command = [sys.executable, "-P", "-m", f"benchmarks.gpu_check.{module}", task.to_json()]
    return Stage(name, purpose, command, result, plan.limit_s, environment, reading=reading, **more)


def _memory(plan: CheckPlan) -> Mapping[str, Any]:
    # On a GPU vLLM profiles its memory: a fixed KV cache would skip that.
    return {"kv_cache_memory_bytes": 512 << 20} if plan.device is Device.CPU else {}


def _speed_stage(plan: CheckPlan) -> Stage:
    """`specgate bench compare`; its results are read by `speed_stage`."""
    words = ["--target", plan.target, "--dtype", plan.dtype, "--pairs", str(plan.pairs)]
    words += ["--max-tokens", str(plan.max_tokens), "--side", "stock", "--side", "all"]
    for level in plan.concurrency:
        words += ["--concurrency", str(level)]
    for method in plan.methods:
        words += ["--method", method]
    for fields in plan.proposers:
        words += ["--proposer", json.dumps(fields)]
    if plan.device is Device.CUDA:
        words += ["--graphs", "--stock-defaults", "--kv-cache-memory-bytes", str(4 << 30)]
        words += ["--gpu-memory-utilization", str(GPU_SHARE)]
    folder, result = plan.out / "speed", plan.out / "speed.json"
    module = "benchmarks.gpu_check.speed_stage"
    command = [sys.executable, "-P", "-m", module, str(folder), str(result), *words]
    purpose = "tokens per second against stock vLLM as it starts by default"
    if plan.device is Device.CPU:
        purpose = "tokens per second against stock vLLM"
    reading = (
        "`ratio` is Specgate's tokens per second over stock vLLM's in the same round: the median, "
        "and the interval in which it lies with 95 %. Above 1 Specgate is faster. The servers' "
        f"logs are in `{folder.name}/`."
    )
    return Stage("speed", purpose, command, result, plan.limit_s * SPEED_SHARE, reading=reading)
