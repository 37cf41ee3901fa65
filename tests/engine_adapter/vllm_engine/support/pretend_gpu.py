"""vLLM's GPU worker and GPU runner on the CPU: every call to the device is replaced.

What runs is vLLM's own: loading, the memory profile, the profile of graph memory, the KV cache,
warm-up, capture, and steps; with Specgate's hooks in it. Replaced are streams and events (nothing),
graphs (`pretend_graphs`), Triton's kernels (twins), and the platform's answers about graphs.
Inductor does not compile: the pieces of a model run as they were traced. The attention is that of
CPUs, said to support graphs of whole steps as most backends of GPUs do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from engine_adapter.vllm_engine.patches.v2_kernels import patch_v2_runner
from tests.engine_adapter.vllm_engine.support.pretend_graphs import (
    LOG,
    REPLAY,
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
        graphs: whether a draft uses graphs.
    """

    phase: str
    model: str
    num_tokens: int
    graphs: bool = False


dummy_runs: list[DummyRun] = []


def install() -> None:
    """Replaces the calls to the device, and Specgate's worker for CPUs by that for GPUs.

    For a process that does nothing else: nothing is put back.
    """
    import vllm.v1.worker.cpu.shm  # noqa: F401  # replaces pinned memory, as in a worker for CPUs

    patch_v2_runner()
    _replace_device_calls()
    _replace_platform()
    _follow_whole_graphs()
    _note_dummy_runs()
    from engine_adapter.vllm_engine.worker import worker

    worker.CPUWorker = _worker_class(worker.GPUWorker)  # type: ignore[attr-defined]


def install_for_any_rows() -> None:
    """The same, with attention whose graphs serve rows of any length, as FlashAttention's do."""
    install()
    from vllm.v1.attention.backend import AttentionCGSupport
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder

    CPUAttentionMetadataBuilder._cudagraph_support = AttentionCGSupport.ALWAYS


def events() -> list[GraphEvent]:
    """What graphs did since the start."""
    return LOG.events


def runs() -> list[DummyRun]:
    """The dummy runs since the start."""
    return dummy_runs


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
    _let_metadata_be_updated(CPUAttentionMetadataBuilder)


def _let_metadata_be_updated(builder: Any) -> None:
    """Computes the plan of a pass of attention where a graph of drafts does, as on a GPU."""
    from vllm.v1.attention.backend import CommonAttentionMetadata

    def update(this: Any, metadata: Any) -> None:
        common = CommonAttentionMetadata(
            query_start_loc=metadata.query_start_loc,
            query_start_loc_cpu=metadata.query_start_loc,
            seq_lens=metadata.seq_lens,
            num_reqs=len(metadata.seq_lens),
            num_actual_tokens=metadata.num_actual_tokens,
            max_query_len=metadata.max_query_len,
            max_seq_len=metadata.max_seq_len,
            block_table_tensor=metadata.block_table,
            slot_mapping=metadata.slot_mapping,
            causal=metadata.causal,
        )

        def plan() -> None:
            metadata.scheduler_metadata = this.build(0, common).scheduler_metadata

        if LOG.recording is not None:
            LOG.recording.add(plan)
        with _disable_current_modes():
            plan()

    builder.supports_draft_decode_metadata_update = True
    builder.update_draft_decode_metadata = update


def _note_dummy_runs() -> None:
    from engine_adapter.vllm_engine import compat
    from engine_adapter.vllm_engine.worker.drafting import decode_graphs
    from engine_adapter.vllm_engine.worker.drafting.paged_model import PagedDraftModel
    from engine_adapter.vllm_engine.worker.drafting.weights import LoadedModel

    loading: Any = LoadedModel
    paged: Any = PagedDraftModel
    whole: Any = decode_graphs.DecodeGraphs
    decode_graphs._QUERY_BACKENDS.add("CPU_ATTN")
    of_target, of_draft, forward = (
        compat.GPUModelRunner._dummy_run,
        loading.dummy_run,
        paged._forward,
    )

    def target(runner: Any, num_tokens: int, *args: Any, **more: Any) -> Any:
        dummy_runs.append(DummyRun(LOG.phase, "target", num_tokens))
        return of_target(runner, num_tokens, *args, **more)

    def draft(loaded: Any, num_tokens: int, graphs: bool) -> None:
        dummy_runs.append(DummyRun(LOG.phase, loaded.prefix, num_tokens, graphs))
        with _running(loaded.prefix):
            of_draft(loaded, num_tokens, graphs)

    def one_pass(model: Any, *args: Any) -> Any:
        with _running(model._loaded.prefix):
            return forward(model, *args)

    def of_model(method: Callable[..., Any]) -> Callable[..., Any]:
        def run_named(graphs: Any, *args: Any) -> Any:
            with _running(graphs._loaded.prefix):
                return method(graphs, *args)

        return run_named

    for name in ("capture", "draft", "draft_after"):
        setattr(whole, name, of_model(getattr(whole, name)))
    compat.GPUModelRunner._dummy_run = target
    loading.dummy_run = draft
    paged._forward = one_pass


def _follow_whole_graphs() -> None:
    """Lets a graph of a whole step read the step's metadata, as from buffers on a GPU.

    Its attention is an operator of the CPU, which takes the metadata from vLLM's context.
    """
    from vllm.forward_context import BatchDescriptor, set_forward_context
    from vllm.v1.worker.gpu.attn_utils import build_slot_mappings_by_layer
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager
    from vllm.v1.worker.gpu.model_states.default import DefaultModelState

    state: Any = DefaultModelState
    manager: Any = CudaGraphManager
    prepare, replay = state.prepare_attn, manager.run_fullgraph

    def prepared(
        this: Any,
        batch: Any,
        mode: Any,
        tables: Any,
        slots: Any,
        groups: Any,
        cache: Any,
        *args: Any,
        **more: Any,
    ) -> Any:
        metadata = prepare(this, batch, mode, tables, slots, groups, cache, *args, **more)
        LOG.attention = metadata, build_slot_mappings_by_layer(slots, cache)
        return metadata

    def replayed(this: Any, shape: Any) -> Any:
        if type(this) is CudaGraphManager:  # of drafts
            LOG.events.append(
                GraphEvent(REPLAY, LOG.phase, LOG.model, shape.cg_mode.name, shape.num_tokens)
            )
            return replay(this, shape)
        metadata, slots = LOG.attention
        with set_forward_context(
            metadata,
            this.vllm_config,
            num_tokens=shape.num_tokens,
            cudagraph_runtime_mode=shape.cg_mode,
            batch_descriptor=BatchDescriptor(num_tokens=shape.num_tokens),
            slot_mapping=slots,
        ):
            return replay(this, shape)

    def stream_of(_: Any, shape: Any) -> None:
        LOG.whole = shape.num_tokens  # vLLM asks for the stream of the capture that it begins

    state.prepare_attn, manager.run_fullgraph = prepared, replayed
    manager._capture_stream = stream_of


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
            with _phase(GRAPH_MEMORY):
                self.model_runner.profile_cudagraph_memory()
            return available

        def compile_or_warm_up_model(self) -> Any:
            with _phase(CAPTURING):
                times = super().compile_or_warm_up_model()
            LOG.phase = SERVING
            return times

    return PretendGPUWorker
