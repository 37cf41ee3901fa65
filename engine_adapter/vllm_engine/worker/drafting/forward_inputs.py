"""The inputs of a draft model's forward passes: positions, KV slots, attention metadata."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
        slots: KV cache group -> int64 [T], the KV slot of each token, on the device.
        metadata: KV cache group -> vLLM's `CommonAttentionMetadata`.
    """

    rows: npt.NDArray[np.intp]
    position: Ints
    positions: torch.Tensor
    slots: Mapping[int, torch.Tensor]
    metadata: Mapping[int, Any]


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


@dataclass(frozen=True, slots=True)
class _GroupTable:
    """Some rows' part of one KV cache group's table of kernel blocks.

    Attributes:
        blocks: int32 [N, W], the blocks of each row.
        block_size: tokens per kernel block.
    """

    blocks: npt.NDArray[np.int32]
    block_size: int

    def slots(self, row: Any, position: Ints) -> Ints:
        """The slot of each position; any slot for a position after the end of the table."""
        size = self.block_size
        column = np.minimum(position // size, self.blocks.shape[1] - 1)
        return self.blocks[row, column].astype(np.int64) * size + position % size


class ForwardInputBuilder:
    """Builds the inputs for the draft model's KV, whose blocks are those of the target.

    Args:
        tables: KV cache group -> vLLM's block table of the batch, of kernel blocks.
        device: where the pass runs.
    """

    def __init__(self, tables: Mapping[int, Any], device: torch.device) -> None:
        self._tables = {
            gid: _GroupTable(table.get_numpy_array(), table.block_size)
            for gid, table in tables.items()
        }
        self._device = device

    def prefill(self, rows: npt.NDArray[np.intp], start: Ints, length: Ints) -> ForwardInputs:
        """One pass over the positions [start, start + length) of each row; no length is 0."""
        stops = np.cumsum(length)
        row = np.repeat(np.arange(len(rows)), length)
        position = np.arange(stops[-1]) - np.repeat(stops - length - start, length)
        tables = self._of_rows(rows)
        starts = np.concatenate([[0], stops]).astype(np.int32)
        seq_lens = start + length
        return self._inputs(
            rows,
            position,
            self._to_device(position),
            {gid: self._to_device(table.slots(row, position)) for gid, table in tables.items()},
            {gid: self._to_device(table.blocks) for gid, table in tables.items()},
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
        row, tables = np.arange(len(rows)), self._of_rows(rows)
        position = first + np.arange(len(counts))[:, None]
        furthest = np.maximum.accumulate(first)
        positions = self._to_device(position)
        slots = {gid: self._to_device(table.slots(row, position)) for gid, table in tables.items()}
        blocks = {gid: self._to_device(table.blocks) for gid, table in tables.items()}
        seq_lens = _CpuAndDevice.of(torch.from_numpy((position + 1).astype(np.int32)), self._device)
        starts = _CpuAndDevice.of(torch.arange(len(rows) + 1, dtype=torch.int32), self._device)
        for i, count in enumerate(counts):
            yield self._inputs(
                rows[:count],
                position[i, :count],
                positions[i, :count],
                {gid: of_group[i, :count] for gid, of_group in slots.items()},
                {gid: of_group[:count] for gid, of_group in blocks.items()},
                starts[: count + 1],
                seq_lens[i, :count],
                1,
                int(furthest[count - 1]) + i + 1,
            )

    def _of_rows(self, rows: npt.NDArray[np.intp]) -> dict[int, _GroupTable]:
        tables = self._tables.items()
        return {gid: replace(table, blocks=table.blocks[rows]) for gid, table in tables}

    def _to_device(self, numbers: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(numbers).to(self._device)

    def _inputs(
        self,
        rows: npt.NDArray[np.intp],
        position: Ints,
        positions: torch.Tensor,
        slots: Mapping[int, torch.Tensor],
        blocks: Mapping[int, torch.Tensor],
        starts: _CpuAndDevice,
        seq_lens: _CpuAndDevice,
        max_query_len: int,
        max_seq_len: int,
    ) -> ForwardInputs:
        metadata = {
            gid: compat.CommonAttentionMetadata(
                query_start_loc=starts.device,
                query_start_loc_cpu=starts.cpu,
                seq_lens=seq_lens.device,
                seq_lens_cpu_upper_bound=seq_lens.cpu,
                num_reqs=len(rows),
                num_actual_tokens=len(position),
                max_query_len=max_query_len,
                max_seq_len=max_seq_len,
                block_table_tensor=blocks[gid],
                slot_mapping=of_group,
                causal=True,
            )
            for gid, of_group in slots.items()
        }
        return ForwardInputs(rows, position, positions, slots, metadata)
