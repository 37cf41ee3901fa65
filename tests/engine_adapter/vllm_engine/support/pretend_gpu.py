"""vLLM's V1 GPU worker and GPU runner on the CPU: every call to the device is replaced.

What runs is vLLM's own: loading, the memory profile, the profile of graph memory, the KV cache,
capture, and steps; with Specgate's hooks in it. Replaced are streams and events (nothing), graphs
(`pretend_graphs`), and the platform's answers about graphs. Inductor does not compile: the pieces
of a model run as they were traced. The attention is that of CPUs, said to support graphs of whole
steps as most backends of GPUs do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from tests.engine_adapter.vllm_engine.support.live_memory import LiveMemory
from tests.engine_adapter.vllm_engine.support.pretend_graphs import (
    LOG,
    GraphEvent,
    PretendGraph,
    pretend_capture,
)

SIZES = (1, 2, 4, 8, 16, 64)
"""Tokens of the graphs."""

ARGUMENTS: dict[str, Any] = {
    "enforce_eager": False,
    "compilation_config": {
        "mode": 3,
        "backend": "eager",
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "cudagraph_capture_sizes": list(SIZES),
    },
}
"""An engine's arguments."""

MEMORY = 8 << 30
"""Bytes of the pretend GPU, of which none is ever used."""

PROFILE, GRAPH_MEMORY, CAPTURING, SERVING = "profile", "graph memory", "capture", "serving"
"""The phases."""


@dataclass(frozen=True)
class DummyRun:
    """A pass of meaningless tokens.

    Attributes:
        phase: what vLLM was doing.
        model: `target`, or the prefix of a draft's layers.
        num_tokens: without padding.
        mode: of the target: the graphs that vLLM asked for; of a draft: whether it uses graphs.
        capturing: whether graphs are captured.
    """

    phase: str
    model: str
    num_tokens: int
    mode: Any
    capturing: bool


dummy_runs: list[DummyRun] = []
peak_bytes = {"profile": 0, "step": 0}


def install() -> None:
    """Replaces the calls to the device, and Specgate's worker for CPUs by that for GPUs.

    For a process that does nothing else: nothing is put back.
    """
    _replace_device_calls()
    _replace_platform()
    _note_dummy_runs()
    from engine_adapter.vllm_engine.worker import worker

    worker.CPUWorker = _worker_class(worker.GPUWorker)  # type: ignore[attr-defined]


def events() -> list[GraphEvent]:
    """What graphs did since the start."""
    return LOG.events


def runs() -> list[DummyRun]:
    """The dummy runs since the start."""
    return dummy_runs


def peaks() -> dict[str, int]:
    """Peak bytes of the tensors that were made in the profile, and in the served step with most."""
    return peak_bytes


def _replace_device_calls() -> None:
    import logging

    from vllm.compilation.backends import VllmBackend
    from vllm.utils import torch_utils
    from vllm.v1.worker import gpu_worker

    class Nothing:
        """A stream or an event, of which nothing is expected."""

        device = torch.device("cpu")

        def __init__(self, *_: Any, **__: Any) -> None: ...

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_, **__: None

    for where, name, value in (
        *((torch, "Event", Nothing), (torch.cuda, "Event", Nothing)),
        *((torch.cuda, "Stream", Nothing), (torch.cuda, "current_stream", Nothing)),
        (torch.cuda, "stream", lambda _: nullcontext()),
        (torch.cuda, "CUDAGraph", PretendGraph),
        (torch.cuda, "graph", pretend_capture),
        (torch.accelerator, "synchronize", lambda *_: None),
        (torch.accelerator, "empty_cache", lambda *_: None),
        (torch.accelerator, "get_memory_info", lambda *_: (MEMORY, MEMORY)),
        (torch_utils, "weak_ref_tensor", lambda tensor: tensor),
        (gpu_worker, "kernel_warmup", lambda *_: None),
        (VllmBackend, "configure_post_pass", lambda _: None),  # of Inductor's
    ):
        setattr(where, name, value)
    # Then vLLM asserts that a replay's inputs have the addresses of the capture.
    logging.getLogger("vllm.compilation.cuda_graph").setLevel(logging.DEBUG)


def _replace_platform() -> None:
    from vllm.platforms import current_platform
    from vllm.v1.attention.backend import AttentionCGSupport
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder

    platform: Any = type(current_platform)
    check = platform.check_and_update_config
    kept = ("mode", "backend", "cudagraph_mode", "cudagraph_capture_sizes")

    def checked(config: Any) -> None:
        compilation = config.compilation_config
        before = {name: getattr(compilation, name) for name in kept}
        check(config)
        for name, value in before.items():
            setattr(compilation, name, value)

    platform.check_and_update_config = staticmethod(checked)
    platform.support_static_graph_mode = classmethod(lambda _: True)
    platform.get_static_graph_wrapper_cls = classmethod(
        lambda _: "vllm.compilation.cuda_graph.CUDAGraphWrapper"
    )
    platform.graph_pool_handle = lambda _: (0, 0)
    CPUAttentionMetadataBuilder._cudagraph_support = AttentionCGSupport.UNIFORM_BATCH


def _note_dummy_runs() -> None:
    from engine_adapter.vllm_engine import compat
    from engine_adapter.vllm_engine.worker.drafting.paged_model import PagedDraftModel
    from engine_adapter.vllm_engine.worker.drafting.weights import NamedDraft

    named: Any = NamedDraft
    paged: Any = PagedDraftModel
    of_target, of_draft, forward = compat.GPUModelRunner._dummy_run, named.dummy_run, paged._forward

    def target(runner: Any, num_tokens: int, mode: Any = None, *args: Any, **more: Any) -> Any:
        given = more.get("cudagraph_runtime_mode", mode)
        name = None if given is None else given.name
        capturing = bool(more.get("is_graph_capturing"))
        dummy_runs.append(DummyRun(LOG.phase, "target", num_tokens, name, capturing))
        return of_target(runner, num_tokens, *(() if mode is None else (mode,)), *args, **more)

    def draft(loaded: Any, num_tokens: int, graphs: bool, capturing: bool, *args: Any) -> None:
        dummy_runs.append(DummyRun(LOG.phase, loaded.prefix, num_tokens, graphs, capturing))
        with _running(loaded.prefix):
            of_draft(loaded, num_tokens, graphs, capturing, *args)

    def one_pass(model: Any, *args: Any) -> Any:
        with _running(model._loaded.prefix):
            return forward(model, *args)

    compat.GPUModelRunner._dummy_run = target
    named.dummy_run = draft
    paged._forward = one_pass


@contextmanager
def _running(model: str) -> Iterator[None]:
    LOG.model = model
    try:
        yield
    finally:
        LOG.model = "target"


@contextmanager
def _phase(name: str) -> Iterator[None]:
    before, LOG.phase = LOG.phase, name
    try:
        yield
    finally:
        LOG.phase = before


def _worker_class(base: Any) -> type:
    class PretendGPUWorker(base):  # type: ignore[misc]
        """Specgate's worker for GPUs, without one."""

        def init_device(self) -> None:
            """What vLLM's does for a GPU, but for the choice of one and its memory."""
            from vllm.utils.torch_utils import set_random_seed
            from vllm.v1.worker.gpu_worker import init_worker_distributed_environment

            self.device = torch.device("cpu")
            init_worker_distributed_environment(
                self.vllm_config, self.rank, self.distributed_init_method, self.local_rank, "gloo"
            )
            set_random_seed(self.model_config.seed)
            self.init_snapshot = SimpleNamespace(free_memory=MEMORY)
            self._init_workspace_and_model_runner()

        def determine_available_memory(self) -> int:
            """vLLM's, then the profile of graph memory, in vLLM's order."""
            with _phase(PROFILE):
                available: int = super().determine_available_memory()
                # Again, since the first one traces the models.
                with torch.inference_mode(), LiveMemory() as memory:
                    self.model_runner.profile_run()
                peak_bytes["profile"] = memory.peak
            with _phase(GRAPH_MEMORY):
                self.model_runner.profile_cudagraph_memory()
            return available

        def compile_or_warm_up_model(self) -> Any:
            with _phase(CAPTURING):
                times = super().compile_or_warm_up_model()
            LOG.phase = SERVING
            return times

        def execute_model(self, *args: Any, **kwargs: Any) -> Any:
            self.step_memory = LiveMemory()
            with self.step_memory:
                return super().execute_model(*args, **kwargs)

        def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
            with self.step_memory:
                output = super().sample_tokens(*args, **kwargs)
            peak_bytes["step"] = max(peak_bytes["step"], self.step_memory.peak)
            return output

    return PretendGPUWorker
