"""vLLM's GPU runner prepares and serves on the CPU; its CUDA graphs are pretended.

`CPUModelRunner` inherits the dummy runs, the profile run, the capture and the choice of a graph for
each step from `GPUModelRunner`. Here they run as on a GPU; only the streams and the measurement of
memory are replaced. In place of a graph, each model follows the rule of vLLM's `CUDAGraphWrapper`:
what has no graph yet is captured, and vLLM refuses that outside its capture.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import torch

TARGET = "target"

_TIMEOUT_S = 500
_SIZES = list(range(1, 25))
"""Tokens of the graphs: each number, so that no step is padded."""


@dataclass(frozen=True)
class Call:
    """A forward pass.

    Attributes:
        model: `target`, or the proposer.
        mode: how vLLM ran it: `NONE`, `PIECEWISE` or `FULL`.
        tokens: of the pass, with padding.
        captured: whether its graph was captured now.
    """

    model: str
    mode: str
    tokens: int
    captured: bool


@dataclass
class Start:
    """What happened.

    Attributes:
        profile: the calls of the profile run.
        capture: those of the capture.
        serve: those of the request of each proposer, and of one without under `none`.
        texts: the tokens of these requests.
        faults: proposer -> its last fault.
    """

    profile: list[Call] = field(default_factory=list)
    capture: list[Call] = field(default_factory=list)
    serve: dict[str, list[Call]] = field(default_factory=dict)
    texts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)


def start_and_serve(
    target: str, proposers: list[dict[str, Any]], *, warms_up_drafts: bool = True
) -> Start:
    """Starts an engine in a process of its own, captures, and serves one request after the other.

    Args:
        warms_up_drafts: whether dummy runs include the drafts.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_run, target, proposers, warms_up_drafts).result(timeout=_TIMEOUT_S)


class _Graphs:
    """In place of a model and its graphs."""

    def __init__(self, name: str, model: Any, calls: list[Call]) -> None:
        self.name, self.model, self.calls = name, model, calls
        self.captured: set[tuple[str, Any]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from vllm.compilation.monitor import validate_cudagraph_capturing_enabled
        from vllm.forward_context import get_forward_context

        context = get_forward_context()
        mode, graph = context.cudagraph_runtime_mode.name, context.batch_descriptor
        captures = mode != "NONE" and (mode, graph) not in self.captured
        if captures:
            validate_cudagraph_capturing_enabled()
            self.captured.add((mode, graph))
        self.calls.append(Call(self.name, mode, len(kwargs["input_ids"]), captures))
        return self.model(*args, **kwargs)


def _run(target: str, proposers: list[dict[str, Any]], warms_up_drafts: bool) -> Start:
    from engine_adapter.config import EngineConfig, draft_capacity
    from engine_adapter.proposers.methods import parse_specs
    from engine_adapter.vllm_engine.gateway import arguments

    specs = parse_specs(proposers)
    options = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 4}
    options |= {"kv_cache_memory_bytes": 64 << 20, "max_num_batched_tokens": 256}
    config = EngineConfig(target, "demo", specs, None, options, "ERROR")
    arguments.prepare_environment(config)
    made = arguments.engine_args(config, draft_capacity(specs, None), None)
    from vllm import LLMEngine

    engine: Any = LLMEngine.from_vllm_config(made.create_engine_config())
    runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    runner.warms_up_drafts = warms_up_drafts
    start, calls = Start(), _record_calls(runner)
    _choose_graphs(runner)
    runner.profile_run()
    start.profile = _taken(calls)
    with _without_a_device():
        runner.capture_model()
    start.capture = _taken(calls)
    for method in (None, *specs):
        name = method.name if method else "none"
        start.texts[name] = _serve(engine, method)
        start.serve[name] = _taken(calls)
    start.faults = dict(runner.drafter._last_fault)
    return start


def _taken(calls: list[Call]) -> list[Call]:
    taken = list(calls)
    calls.clear()
    return taken


def _record_calls(runner: Any) -> list[Call]:
    calls: list[Call] = []
    runner.model = _Graphs(TARGET, runner.model, calls)
    for name, draft in runner.drafter.host.draft_models.items():
        draft._loaded.model = _Graphs(name, draft._loaded.model, calls)
    return calls


def _choose_graphs(runner: Any) -> None:
    """vLLM's choice of graphs, as with an attention backend that supports all."""
    from vllm.config import CUDAGraphMode

    config = runner.compilation_config
    config.cudagraph_mode = CUDAGraphMode.FULL_AND_PIECEWISE
    config.cudagraph_capture_sizes = list(_SIZES)
    config.max_cudagraph_capture_size = _SIZES[-1]
    config.cudagraph_num_of_warmups = 1
    for draft in runner.drafter.host.draft_models.values():
        draft._loaded.speculative_config.enforce_eager = False
    runner._check_and_update_cudagraph_mode([], [])


@contextmanager
def _without_a_device() -> Iterator[None]:
    from vllm.v1.worker import gpu_model_runner as module

    with (
        patch.object(module, "graph_capture", lambda device: nullcontext()),
        patch.object(module, "lock_workspace", lambda: None),  # a GPU worker makes one
        patch.object(torch.accelerator, "get_memory_info", lambda *_: (0, 0)),
    ):
        yield


def _serve(engine: Any, method: Any) -> tuple[int, ...]:
    """The text of a request with this proposer, greedily."""
    from vllm import SamplingParams

    from engine_adapter.types import SpecDecodeParams, SpecMethod
    from engine_adapter.vllm_engine.wire import to_extra_args

    name, k = (method.name, method.num_speculative_tokens) if method else ("none", 0)
    extra = to_extra_args(SpecDecodeParams(SpecMethod(name, k), pinned=True))
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, extra_args=extra)
    engine.add_request(name, {"prompt_token_ids": list(range(100, 140))}, params)
    last: Any = None
    while engine.has_unfinished_requests():
        for output in engine.step():
            last = output
    return tuple(last.outputs[0].token_ids)
