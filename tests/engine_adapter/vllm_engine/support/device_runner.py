"""vLLM's GPU runner V2 on the pretend device, without its forward pass.

vLLM's own are the states of requests, the sampler over them, the inputs of a step, and all that
follows the forward pass. Its kernels are twins, which are launched as on a GPU: a launch waits for
nothing, and refuses tensors that are not on the device.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.cpu_kernels.launch import CpuKernel
from tests.engine_adapter.vllm_engine.support.kernel_pairs import with_twins
from tests.engine_adapter.vllm_engine.support.pretend_device import (
    CPU,
    EVENT,
    GPU,
    DeviceTensor,
    PretendDevice,
)


class DeviceRunner(compat.GPUModelRunner):  # type: ignore[misc]
    """vLLM's runner for requests whose blocks are known.

    Args:
        rows: the most requests.
        context: the most tokens of each.
        capacity: the most drafts of a row.
        vocabulary: the target's.
        block_size: tokens of a KV block.
        sampler: the class of the plain sampler.
    """

    def __init__(
        self,
        *,
        rows: int,
        context: int,
        capacity: int,
        vocabulary: int,
        block_size: int,
        sampler: type,
    ) -> None:
        from vllm.v1.worker.gpu.async_utils import StepTimingCollector
        from vllm.v1.worker.gpu.input_batch import InputBuffers
        from vllm.v1.worker.gpu.kv_connector import NO_OP_KV_CONNECTOR
        from vllm.v1.worker.gpu.sample.prompt_logprob import PromptLogprobsWorker
        from vllm.v1.worker.gpu.spec_decode.utils import DraftTokensHandler
        from vllm.v1.worker.gpu.states import RequestState

        self.device, self.max_num_reqs, self.max_model_len = GPU, rows, context
        self.is_last_pp_rank, self.num_speculative_steps = True, capacity
        self.decode_query_len = capacity + 1
        for absent in (
            *("adaptive_verification", "aux_output_connector", "batch_sharder", "encoder_cache"),
            *("fast_prefill", "kv_block_zeroer", "lora_config", "pcp_manager", "pooling_runner"),
            *("pp_handler", "speculator"),
        ):
            setattr(self, absent, None)
        self.use_pp = self.check_ep_fault = False
        self._draft_workspace_lane = 0
        self.model_config = SimpleNamespace(rswa_window=None)
        self.parallel_config = SimpleNamespace(world_size=1)
        self.main_stream = self.output_copy_stream = torch.cuda.Stream()
        self.kv_connector, self.step_timing = NO_OP_KV_CONNECTOR, StepTimingCollector()
        nothing: Any = lambda *_, **__: None  # noqa: E731
        self.eplb = SimpleNamespace(step=nothing)
        self.lora_state: Any = SimpleNamespace(add_request=nothing, remove_request=nothing)
        self.model_state = SimpleNamespace(
            num_new_sampled_tokens_per_step=1,
            **dict.fromkeys(("add_request", "remove_request", "apply_staged_writes"), nothing),
            postprocess_state=nothing,
        )
        self.draft_tokens_handler = DraftTokensHandler(GPU)
        self.prompt_logprobs_worker = PromptLogprobsWorker(rows, GPU)
        self.input_buffers = InputBuffers(rows, rows * context, GPU)
        self.req_states = RequestState(rows, context, context, capacity, vocabulary, GPU)
        self.block_tables = Tables(rows, context, block_size)
        config: Any = SimpleNamespace(reasoning_config=None)
        self.sampler = sampler(config, rows, vocabulary, GPU, self.req_states)

    def execute_model(self, scheduler_output: Any, *_: Any, **__: Any) -> None:
        """What vLLM's does but for the forward pass, whose outputs are `forward`'s."""
        from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor
        from vllm.v1.worker.gpu.model_runner import ExecuteModelState

        self.finish_requests(scheduler_output)
        self.add_requests(scheduler_output)
        self.update_requests(scheduler_output)
        rows, _ = self.gather_batch_req_state(scheduler_output, dummy_run=False)
        tokens = scheduler_output.total_num_scheduled_tokens
        shape = BatchExecutionDescriptor(
            compat.CUDAGraphMode.NONE, tokens, rows.idx_mapping_np.size
        )
        batch = self.prepare_inputs(scheduler_output, rows, shape, 0)
        hidden, auxiliary, slots = self.forward(batch)
        self.execute_model_state = ExecuteModelState(
            batch,
            None,
            slots,
            hidden,
            auxiliary,
            None,
            set(),
            None,
            None,
            self.decode_query_len - 1,
        )

    def forward(self, batch: Any) -> tuple[torch.Tensor, list[torch.Tensor], Any]:
        """The target's states of a step, those of inner layers, and the slots of each layer.

        `batch` is vLLM's `InputBatch`.
        """
        raise NotImplementedError


class Tables:
    """What hooks read of vLLM's block tables, with one group."""

    def __init__(self, rows: int, context: int, block_size: int) -> None:
        self._blocks = np.zeros((rows, context // block_size), np.int32)
        self.block_tables = [SimpleNamespace(gpu=DeviceTensor(torch.from_numpy(self._blocks)))]
        self.block_sizes = [block_size]
        self.num_blocks = SimpleNamespace(np=np.zeros((1, rows), np.int32))

    def append_block_ids(self, row: int, ids: Sequence[Sequence[int]], *, overwrite: bool) -> None:
        """Takes all blocks of a row."""
        self.num_blocks.np[0, row] = len(ids[0])
        self._blocks[row] = ids[0]

    def apply_staged_writes(self) -> None:
        """Nothing is staged."""

    def slots(self, batch: Any) -> torch.Tensor:
        """The KV slot of every token of a step, int64 [T]; `batch` is vLLM's `InputBatch`."""
        position = batch.positions.held[: batch.num_tokens].numpy()
        row = batch.idx_mapping_np.repeat(batch.num_scheduled_tokens)
        (size,) = self.block_sizes
        slots = self._blocks[row, position // size].astype(np.int64) * size + position % size
        return DeviceTensor(torch.from_numpy(slots))


def put_on_the_device(monkeypatch: pytest.MonkeyPatch, device: PretendDevice) -> None:
    """Replaces what vLLM's worker for CPUs replaces in a process, by what a GPU would do."""
    for module in ("buffer_utils", "input_batch", "model_runner", "sample.gumbel", "states"):
        with_twins(module)
    buffers, runner = compat.v2_buffer_utils, compat.v2_model_runner
    monkeypatch.setattr(buffers, "UvaBuffer", _Uva)
    # Each has the name from whichever came first, vLLM's own or its worker's for CPUs.
    takers = compat.v2_penalties, compat.v2_prompt_logprob, compat.v2_structured_outputs
    for module in (buffers, runner, *takers):
        monkeypatch.setattr(module, "async_tensor_h2d", _to_device)
    monkeypatch.setattr(CpuKernel, "_launch", _launch)
    for where in (torch, torch.cuda):
        monkeypatch.setattr(where, "Event", lambda *_, **__: _Event(device))
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch._C.TensorBase.pin_memory)


class _Event:
    """In the place of torch's."""

    def __init__(self, device: PretendDevice) -> None:
        self._device = device
        self._number = 0

    def record(self, *_: Any) -> None:
        self._device.recorded += 1
        self._number = self._device.recorded

    def wait(self, *_: Any) -> None:
        """The device waits, and not the CPU."""

    def elapsed_time(self, end: "_Event") -> float:
        """Milliseconds between two events that the device has reached."""
        assert max(self._number, end._number) <= self._device.reached
        return 1.0

    def synchronize(self) -> None:
        if self._number > self._device.reached:
            self._device.reached = self._number
            self._device.note(EVENT, "Event.synchronize")


class _Uva:
    """vLLM's `UvaBuffer`: memory of the CPU that the device reads where it is."""

    def __init__(self, size: int | Sequence[int], dtype: torch.dtype) -> None:
        self.cpu = torch.zeros(size, dtype=dtype)
        self.np = self.cpu.numpy()
        self._uva = DeviceTensor(self.cpu)

    def uva(self, n: int | None = None) -> torch.Tensor:
        return self._uva if n is None else self._uva[:n]


def _to_device(data: Any, device: Any = None, dtype: Any = None, out: Any = None) -> torch.Tensor:
    """vLLM's `async_tensor_h2d`: a copy from pinned memory."""
    pinned = torch.as_tensor(data, dtype=dtype if out is None else out.dtype).pin_memory()
    if out is not None:
        copied: torch.Tensor = out.copy_(pinned, non_blocking=True)
        return copied
    return pinned.to(device, non_blocking=True)


_run = CpuKernel._launch


def _launch(kernel: CpuKernel, grid: Any, *arguments: Any, **constants: Any) -> None:
    for each in (*arguments, *constants.values()):
        if isinstance(each, torch.Tensor) and not isinstance(each, DeviceTensor):
            raise RuntimeError(f"a kernel got a tensor of the device {CPU}")
    with _disable_current_modes():
        _run(kernel, grid, *tree_map(_held, arguments), **tree_map(_held, constants))


def _held(value: Any) -> Any:
    return value.held if isinstance(value, DeviceTensor) else value
