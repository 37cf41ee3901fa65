"""The inputs of a draft model's forward passes: positions, KV slots, attention metadata."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.vllm_engine import compat

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ForwardInputs:
    """One forward pass over T tokens of N rows, row by row.

    Attributes:
        rows: [N], indices into the engine's batch.
        position: int64 [T], of each token's KV.
        positions: the same on the device.
        slots: int64 [T], the KV slot of each token, on the device.
        metadata: vLLM's `CommonAttentionMetadata`.
    """

    rows: npt.NDArray[np.intp]
    position: Ints
    positions: torch.Tensor
    slots: torch.Tensor
    metadata: Any


@dataclass(frozen=True, slots=True)
class _CpuAndDevice:
    """Numbers that vLLM reads on the CPU and on the device."""

    cpu: torch.Tensor
    device: torch.Tensor

    @classmethod
    def of(cls, numbers: torch.Tensor, device: torch.device) -> "_CpuAndDevice":
        return cls(numbers, numbers.to(device))

    def __getitem__(self, part: Any) -> "_CpuAndDevice":
        return _CpuAndDevice(self.cpu[part], self.device[part])


class ForwardInputBuilder:
    """Builds the inputs for the draft model's KV, whose blocks are those of the target.

    Args:
        table: vLLM's block table of the batch, of kernel blocks.
        device: where the pass runs.
    """

    def __init__(self, table: Any, device: torch.device) -> None:
        self._blocks: npt.NDArray[np.int32] = table.get_numpy_array()
        self._block_size: int = table.block_size
        self._device = device

    def prefill(self, rows: npt.NDArray[np.intp], start: Ints, length: Ints) -> ForwardInputs:
        """One pass over the positions [start, start + length) of each row; no length is 0."""
        stops = np.cumsum(length)
        row = np.repeat(np.arange(len(rows)), length)
        position = np.arange(stops[-1]) - np.repeat(stops - length - start, length)
        blocks = self._blocks[rows]
        starts = np.concatenate([[0], stops]).astype(np.int32)
        seq_lens = start + length
        return self._inputs(
            rows,
            position,
            torch.from_numpy(position).to(self._device),
            torch.from_numpy(self._slots(blocks, row, position)).to(self._device),
            torch.from_numpy(blocks).to(self._device),
            _CpuAndDevice.of(torch.from_numpy(starts), self._device),
            _CpuAndDevice.of(torch.from_numpy(seq_lens.astype(np.int32)), self._device),
            int(length.max()),
            int(seq_lens.max()),
        )

    def decode_steps(
        self, rows: npt.NDArray[np.intp], first: Ints, counts: Sequence[int]
    ) -> Iterator[ForwardInputs]:
        """Passes of one token a row, each one position further than the last.

        Args:
            rows: [N]; rows with more passes come first.
            first: int64 [N], each row's position in the first pass.
            counts: for each pass, how many of the rows it has; it never rises.
        """
        if not counts:
            return
        rows, first = rows[: counts[0]], first[: counts[0]]
        row, blocks = np.arange(len(rows)), self._blocks[rows]
        position = first + np.arange(len(counts))[:, None]
        furthest = np.maximum.accumulate(first)
        positions = torch.from_numpy(position).to(self._device)
        slots = torch.from_numpy(self._slots(blocks, row, position)).to(self._device)
        seq_lens = _CpuAndDevice.of(torch.from_numpy((position + 1).astype(np.int32)), self._device)
        table = torch.from_numpy(blocks).to(self._device)
        starts = _CpuAndDevice.of(torch.arange(len(rows) + 1, dtype=torch.int32), self._device)
        for i, count in enumerate(counts):
            yield self._inputs(
                rows[:count],
                position[i, :count],
                positions[i, :count],
                slots[i, :count],
                table[:count],
                starts[: count + 1],
                seq_lens[i, :count],
                1,
                int(furthest[count - 1]) + i + 1,
            )

    def _slots(self, blocks: npt.NDArray[np.int32], row: Any, position: Ints) -> Ints:
        """The slot of each position; any slot for a position after the end of the table."""
        size = self._block_size
        column = np.minimum(position // size, blocks.shape[1] - 1)
        return blocks[row, column].astype(np.int64) * size + position % size

    def _inputs(
        self,
        rows: npt.NDArray[np.intp],
        position: Ints,
        positions: torch.Tensor,
        slots: torch.Tensor,
        table: torch.Tensor,
        starts: _CpuAndDevice,
        seq_lens: _CpuAndDevice,
        max_query_len: int,
        max_seq_len: int,
    ) -> ForwardInputs:
        metadata = compat.CommonAttentionMetadata(
            query_start_loc=starts.device,
            query_start_loc_cpu=starts.cpu,
            seq_lens=seq_lens.device,
            seq_lens_cpu_upper_bound=seq_lens.cpu,
            num_reqs=len(rows),
            num_actual_tokens=len(position),
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
            block_table_tensor=table,
            slot_mapping=slots,
            causal=True,
        )
        return ForwardInputs(rows, position, positions, slots, metadata)
