"""The workers, which vLLM loads by their dotted paths."""

import gc
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from engine_adapter.proposers.contract import Proposer, ProposerSpec
from engine_adapter.seam.media import Modality
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.load_progress import ProgressWriter, report_failures
from engine_adapter.vllm_engine.parent_watch import exit_with_parent
from engine_adapter.vllm_engine.patches.async_on_cpu import patch_async_scheduling
from engine_adapter.vllm_engine.patches.batch_order import patch_batch_order
from engine_adapter.vllm_engine.patches.linear_input import patch_linear_input
from engine_adapter.vllm_engine.patches.lora_cpu import patch_lora_masking
from engine_adapter.vllm_engine.patches.model_inspection import patch_model_inspection
from engine_adapter.vllm_engine.patches.module_names import patch_cpu_runner
from engine_adapter.vllm_engine.patches.recurrent_layers import patch_recurrent_layers
from engine_adapter.vllm_engine.patches.rotary_embedding import patch_rotary_embedding
from engine_adapter.vllm_engine.patches.v2_kernels import patch_v2_runner
from engine_adapter.vllm_engine.wire import SpecgateConfig
from engine_adapter.vllm_engine.worker.background_load import BackgroundLoad
from engine_adapter.vllm_engine.worker.device_memory import (
    check_room,
    release_memory,
    side_stream,
)
from engine_adapter.vllm_engine.worker.runner import cpu_runner, gpu_runner
from engine_adapter.vllm_engine.worker.smoke_test import ProposerSmokeTest
from engine_adapter.vllm_engine.worker.start_failure import (
    check_layout,
    fail_start_on_quantization,
    log_and_describe,
)
from engine_adapter.vllm_engine.worker.target_trial import try_media, try_text


class WorkerHooks:
    """Mixed into a vLLM worker: reports progress while loading, and answers the gateway's calls."""

    _load: BackgroundLoad | None = None
    _smoke_test: ProposerSmokeTest | None = None

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        """Creates the worker as vLLM does. From here on the gateway hears why a rank fails."""
        report_failures(SpecgateConfig.from_vllm_config(vllm_config).progress_pipe)
        super().__init__(vllm_config, *args, **kwargs)  # type: ignore[call-arg]

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Loads as vLLM does, with progress lines. The process then exits with its parent."""
        exit_with_parent()
        # vLLM collects garbage twice for each model that it reads, and three times for all: 0.7 s
        # each, if the collector looks at all that the libraries have made.
        gc.freeze()
        patch_model_inspection()
        if compat.current_platform.is_cpu():
            patch_rotary_embedding()
            if self.vllm_config.model_config.is_multimodal_model:
                patch_linear_input()
            if self.vllm_config.lora_config:
                patch_lora_masking()
            if self.vllm_config.model_config.is_hybrid:
                patch_recurrent_layers()
        if self.vllm_config.model_config.is_hybrid:
            patch_batch_order()
        model = self.vllm_config.model_config
        loading = self._progress.stage(f"loading target {model.model}")
        with loading, fail_start_on_quantization(model, self._progress):
            super().load_model(*args, **kwargs)

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Allocates the KV cache as vLLM does, with a progress line that gives its size."""
        config = SpecgateConfig.from_vllm_config(self.vllm_config)
        if config.needs_draft_kv:
            check_layout(self.vllm_config.cache_config, ProgressWriter(config.progress_pipe))
        blocks = kv_cache_config.num_blocks
        tokens = blocks * self.vllm_config.cache_config.block_size
        with self._progress.stage(f"allocating KV cache: {blocks} blocks, {tokens} tokens"):
            super().initialize_from_config(kv_cache_config)

    def specgate_process(self) -> list[Any]:
        """The machine and the process of this rank: the host's name and the process's id."""
        return [socket.gethostname(), os.getpid()]

    def specgate_memory(self) -> dict[str, tuple[int, int]]:
        """Proposer -> its bytes of weights and of KV on this rank."""
        memory: dict[str, tuple[int, int]] = self.model_runner.drafter.host.memory()
        return memory

    def specgate_try_text(self) -> str:
        """Runs steps of the target with text; the reason if it cannot, or an empty text."""
        return self._try_target(try_text)

    def specgate_try_media(self, modality: str) -> str:
        """The same with an item of a modality, if the target takes such items."""
        return self._try_target(partial(try_media, modality=Modality(modality)))

    def _try_target(self, trial: Callable[[Any], None]) -> str:
        """On a GPU vLLM has run such steps to warm up its kernels and to measure memory."""
        if not compat.current_platform.is_cpu():
            return ""
        try:
            trial(self)
        except Exception as error:
            return log_and_describe("the target", error)
        return ""

    def specgate_smoke_test(self) -> dict[str, str]:
        """The reason for each proposer that cannot draft: see `ProposerSmokeTest`."""
        self.model_runner.warms_up_drafts = False  # a dummy run of the smoke test is of the target
        self._smoke_test = ProposerSmokeTest(self.model_runner, self.model_runner.drafter.host)
        return self._smoke_test.faults()

    def specgate_load(self, fields: dict[str, Any]) -> None:
        """Begins to create a proposer while steps run; `fields` are those of its `ProposerSpec`."""
        self._load = BackgroundLoad(ProposerSpec(**fields), self._create_if_it_fits)

    def _create_if_it_fits(self, spec: ProposerSpec) -> Proposer:
        """Creates a proposer, in the thread of its load. Raises `NoRoom` before it is read."""
        host = self.model_runner.drafter.host
        device = self.model_runner.device
        # vLLM measures what a step needs unless it is told the size of the KV cache.
        needed, step_bytes = host.room_for(spec, getattr(self, "peak_activation_memory", None))
        check_room(needed, device, step_bytes)
        with side_stream(device):
            proposer: Proposer = host.create(spec)
        return proposer

    def specgate_load_state(self) -> list[str]:
        """The state of the load, and the reason of a failure: see `BackgroundLoad.state`."""
        assert self._load is not None
        return list(self._load.state)

    def specgate_smoke_test_load(self) -> str:
        """Lets the created proposer draft once; the reason if it cannot, or an empty text."""
        assert self._load is not None
        assert self._smoke_test is not None
        return self._smoke_test.fault_of(self._load.spec, self._load.proposer) or ""

    def specgate_install(self) -> dict[str, tuple[int, int]]:
        """Installs the created proposer; returns the memory of every proposer."""
        load, self._load = self._load, None
        assert load is not None
        self.model_runner.drafter.install(load.spec, load.proposer)
        return self.specgate_memory()

    def specgate_unload(self, name: str) -> None:
        """Removes a proposer that is loaded or still loading."""
        self._load = None
        self.model_runner.drafter.remove(name)
        release_memory(self.model_runner.device)

    @property
    def _progress(self) -> ProgressWriter:
        pipe = SpecgateConfig.from_vllm_config(self.vllm_config).progress_pipe
        return ProgressWriter(pipe if self.rank == 0 else None)


def cpu_worker_class() -> type:
    """The worker for CPU; created on first use, for the same reason as the runners."""
    _ = compat.CPUWorker  # its module replaces streams, before those of V2's kernels are imported
    patch_v2_runner()
    patch_async_scheduling()

    class SpecgateCPUWorker(WorkerHooks, compat.CPUWorker):
        """vLLM's CPU worker with Specgate's runner."""

        def init_device(self) -> None:
            """Initializes as vLLM does, with Specgate's runner class instead of vLLM's."""
            with patch_cpu_runner(cpu_runner()):
                super().init_device()

    return SpecgateCPUWorker


def gpu_worker_class() -> type:
    """The worker for GPU."""

    class SpecgateGPUWorker(WorkerHooks, compat.GPUWorker):
        """vLLM's GPU worker with Specgate's runner."""

        def _make_model_runner(self) -> Any:
            return gpu_runner()(self.vllm_config, self.device)

    return SpecgateGPUWorker


def __getattr__(name: str) -> Any:
    """`CPUWorker` and `GPUWorker`, as `worker_cls` names them."""
    makers = {"CPUWorker": cpu_worker_class, "GPUWorker": gpu_worker_class}
    if name not in makers:
        raise AttributeError(name)
    globals()[name] = makers[name]()
    return globals()[name]
