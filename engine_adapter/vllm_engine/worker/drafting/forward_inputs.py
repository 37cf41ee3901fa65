"""The inputs of a draft model's forward passes: positions, KV slots, attention metadata."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.proposers.machine_code import machine_code
from engine_adapter.proposers.staging import to_device
from engine_adapter.vllm_engine import compat

Ints = npt.NDArray[np.int64]

_NO_TOKENS = np.zeros((0, 0), np.int32)
_NO_TOKENS.flags.writeable = False  # as those of a batch


class ForwardInputs(NamedTuple):
    """One forward pass over T tokens of N rows, row by row.

    Attributes:
        rows: [N], indices into the engine's batch.
        position: int64 [T], of each token's KV; a bound where only the device knows it.
        positions: int64 [T], of each token's KV, on the device.
        slots: KV cache group -> int64 [T], the KV slot of each token, on the device.
        metadata: KV cache group -> vLLM's `CommonAttentionMetadata`.
        tokens: int32 [T], the tokens that the pass reads, on the device; empty where the builder
            was not given them.
    """

    rows: npt.NDArray[np.intp]
    position: Ints
    positions: torch.Tensor
    slots: Mapping[int, torch.Tensor]
    metadata: Mapping[int, Any]
    tokens: torch.Tensor

    @property
    def starts(self) -> torch.Tensor:
        """The first token of each row among the T, and T: int32 [N + 1], on the device."""
        starts: torch.Tensor = next(iter(self.metadata.values())).query_start_loc
        return starts

    @property
    def ends(self) -> torch.Tensor:
        """The last token of each row among the T, int32 [N], on the device."""
        return self.starts[1:] - 1


class _CpuAndDevice(NamedTuple):
    """Numbers that vLLM reads on the CPU and on the device."""

    cpu: torch.Tensor
    device: torch.Tensor

    def head(self, count: int) -> "_CpuAndDevice":
        return _CpuAndDevice(self.cpu[:count], self.device[:count])


@dataclass(frozen=True, slots=True)
class _GroupTable:
    """One KV cache group's table of kernel blocks.

    Attributes:
        table: vLLM's, of the whole batch.
        blocks: int32 [B, W], the blocks of each row of the batch, on the CPU.
    """

    table: Any
    blocks: npt.NDArray[np.int32]

    def slots(self, row: npt.NDArray[np.intp], position: Ints) -> Ints:
        """The slot of each position; any slot for a position after the end of the table.

        Args:
            row: [N], the row of each position.
            position: int64 [N], or [K, N].
        """
        slots = np.empty_like(position)
        _find_slots(
            self.blocks, row, position.reshape(-1), self.table.block_size, slots.reshape(-1)
        )
        return slots

    def of_rows(self, rows: npt.NDArray[np.intp], on_device: torch.Tensor) -> torch.Tensor:
        """The blocks of some rows, int32 [N, W], from vLLM's copy on the device.

        vLLM copies the table there before the target's forward pass, and no row changes after it.
        """
        last_row = int(rows.max())
        blocks: torch.Tensor = self.table.get_device_tensor(last_row + 1)
        if last_row + 1 == len(rows) and (rows[:-1] < rows[1:]).all():
            return blocks
        return blocks.index_select(0, on_device)

    def slots_on_device(self, blocks: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """`slots` of positions that only the device knows.

        Args:
            blocks: int32 [N, W], of N rows.
            positions: int64 [K, N].

        Returns:
            int64 [K, N], whose rows are contiguous, as vLLM's kernels need them.
        """
        size = self.table.block_size
        columns = (positions // size).clamp_(max=blocks.shape[1] - 1)
        return blocks.T.gather(0, columns) * size + positions % size


class ForwardInputBuilder:
    """Builds the inputs for the draft model's KV, whose blocks are those of the target.

    Args:
        tables: vLLM's block tables of the batch, of kernel blocks, by KV cache group.
        gids: the KV cache groups in which a pass needs slots.
        device: where the pass runs.

    Attributes:
        tables: see above.
    """

    def __init__(self, tables: Any, gids: Iterable[int], device: torch.device) -> None:
        self.tables = tables
        self._tables = {
            gid: _GroupTable(tables[gid], tables[gid].get_numpy_array()) for gid in gids
        }
        self._device = device

    @staticmethod
    def compile() -> None:
        """Compiles its machine code, so that the first step need not."""
        none = np.zeros(0, np.int64)
        _lay_out(none, none, none, _NO_TOKENS, 0)
        _find_slots(np.zeros((1, 1), np.int32), none, none, 1, none)

    def prefill(
        self,
        rows: npt.NDArray[np.intp],
        start: Ints,
        length: Ints,
        token_ids: npt.NDArray[np.int32] = _NO_TOKENS,
        token_offset: int = 0,
    ) -> ForwardInputs:
        """One pass over the positions [start, start + length) of each row; no length is 0.

        Args:
            token_ids: int32 [B, any], read only, the tokens of each row of the engine's batch; none
                for a pass that reads none, or drafts.
            token_offset: at position p the pass reads token p + this. A position after the last one
                gets any token.
        """
        row, position, starts, seq_lens, tokens = _lay_out(
            rows, start, length, token_ids, token_offset
        )
        on_device, positions, *uploads = to_device(
            self._device, rows, position, starts, seq_lens, tokens, *self._slots(row, position)
        )
        return self._inputs(
            rows,
            position,
            positions,
            dict(zip(self._tables, uploads[3:], strict=True)),
            self.blocks(rows, on_device),
            _CpuAndDevice(torch.from_numpy(starts), uploads[0]),
            _CpuAndDevice(torch.from_numpy(seq_lens), uploads[1]),
            int(length.max()),
            int(seq_lens.max()),
            uploads[2],
        )

    def decode_steps(
        self,
        rows: npt.NDArray[np.intp],
        first_position: Ints,
        counts: Sequence[int],
        behind: torch.Tensor | None = None,
        advances: bool = True,
    ) -> Iterator[ForwardInputs]:
        """Passes of one token a row, each one position further than the last if it `advances`.

        Args:
            rows: [N]; rows with more passes come first.
            first_position: int64 [N], each row's position in the first pass, or a bound.
            counts: for each pass, how many of the rows it has; it never rises.
            behind: int [N], on the device, how far each row's position is below its bound; `None`
                if `first_position` is the position.
        """
        if not counts:
            return
        rows, first_position = rows[: counts[0]], first_position[: counts[0]]
        steps = np.arange(len(counts)) * advances
        position = first_position + steps[:, None]
        lengths = (position + 1).astype(np.int32)
        begins = np.arange(len(rows) + 1, dtype=np.int32)
        on_device, begins_there, blocks, *parts = self._uploaded(
            rows, position, begins, lengths, behind
        )
        starts = _CpuAndDevice(torch.from_numpy(begins), begins_there)
        furthest = np.maximum.accumulate(first_position).tolist()
        by_pass = zip(counts, *(part.unbind() for part in parts), strict=True)
        for i, (count, *pass_tensors) in enumerate(by_pass):
            if count < len(rows):
                rows, starts = rows[:count], starts.head(count + 1)
                blocks = {gid: group_blocks[:count] for gid, group_blocks in blocks.items()}
            if count < counts[0]:
                pass_tensors = [tensor[:count] for tensor in pass_tensors]
            pass_positions, length, length_there, *slots = pass_tensors
            yield self._inputs(
                rows,
                position[i, :count],
                pass_positions,
                dict(zip(self._tables, slots, strict=True)),
                blocks,
                starts,
                _CpuAndDevice(length, length_there),
                1,
                furthest[count - 1] + int(steps[i]) + 1,
                on_device[:0],
            )

    def _uploaded(
        self,
        rows: npt.NDArray[np.intp],
        position: Ints,
        begins: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int32],
        behind: torch.Tensor | None,
    ) -> tuple[Any, ...]:
        """The inputs of `decode_steps` on the device, after one copy.

        These are the rows, the begins and the blocks; then [K, N] each the positions, the lengths
        on the CPU and on the device, and the slots of each group.
        """
        slots = [] if behind is not None else self._slots(rows, position)
        on_device, positions, begins_there, lengths_there, *slots_there = to_device(
            self._device, rows, position, begins, lengths, *slots
        )
        blocks = self.blocks(rows, on_device)
        if behind is not None:
            positions, lengths_there = positions - behind, lengths_there - behind
            slots_there = [*self.slots_on_device(blocks, positions).values()]
        on_cpu = torch.from_numpy(lengths)
        return on_device, begins_there, blocks, positions, on_cpu, lengths_there, *slots_there

    def _slots(self, row: npt.NDArray[np.intp], position: Ints) -> list[Ints]:
        return [table.slots(row, position) for table in self._tables.values()]

    def blocks(
        self, rows: npt.NDArray[np.intp], on_device: torch.Tensor
    ) -> dict[int, torch.Tensor]:
        """KV cache group -> the blocks of N rows, int32 [N, W], on the device.

        Args:
            rows: [N], indices into the engine's batch.
            on_device: the same on the device.
        """
        return {gid: table.of_rows(rows, on_device) for gid, table in self._tables.items()}

    def new_blocks(self, num_rows: int) -> dict[int, torch.Tensor]:
        """KV cache group -> room for the blocks of some rows, int32 [num_rows, W]."""
        return {
            gid: table.table.get_device_tensor(1).new_zeros(num_rows, table.blocks.shape[1])
            for gid, table in self._tables.items()
        }

    def slots_on_device(
        self, blocks: Mapping[int, torch.Tensor], positions: torch.Tensor
    ) -> dict[int, torch.Tensor]:
        """KV cache group -> the slots of N rows' positions, int64 [K, N], or [N] for one of each.

        Args:
            blocks: as `blocks` returns them.
            positions: int64, of the shape of the slots.
        """
        by_pass = positions.view(-1, positions.shape[-1])
        return {
            gid: table.slots_on_device(blocks[gid], by_pass).view(positions.shape)
            for gid, table in self._tables.items()
        }

    @staticmethod
    def captured_metadata(
        blocks: Mapping[int, torch.Tensor],
        slots: Mapping[int, torch.Tensor],
        starts: torch.Tensor,
        seq_lens: torch.Tensor,
        longest: tuple[int, int],
    ) -> dict[int, Any]:
        """Metadata of a pass that a graph captures: its tensors are buffers.

        Args:
            blocks: KV cache group -> int32 [N, W].
            slots: KV cache group -> int64 [T].
            starts: int32 [N + 1], the first token of each row among the T, and T.
            seq_lens: int32 [N].
            longest: the tokens of each row in the pass, and the most that `seq_lens` may say.
        """
        count, (length, max_seq_len) = len(seq_lens), longest
        return _metadata(
            blocks,
            slots,
            _CpuAndDevice(torch.arange(count + 1, dtype=torch.int32) * length, starts),
            _CpuAndDevice(torch.full((count,), max_seq_len, dtype=torch.int32), seq_lens),
            count * length,
            longest,
        )

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
        tokens: torch.Tensor,
    ) -> ForwardInputs:
        longest = max_query_len, max_seq_len
        metadata = _metadata(blocks, slots, starts, seq_lens, len(position), longest)
        return ForwardInputs(rows, position, positions, slots, metadata, tokens)


def _metadata(
    blocks: Mapping[int, torch.Tensor],
    slots: Mapping[int, torch.Tensor],
    starts: _CpuAndDevice,
    seq_lens: _CpuAndDevice,
    num_tokens: int,
    longest: tuple[int, int],
) -> dict[int, Any]:
    """KV cache group -> vLLM's metadata; `longest`: of a row's tokens in the pass, and in all."""
    return {
        gid: compat.CommonAttentionMetadata(
            query_start_loc=starts.device,
            query_start_loc_cpu=starts.cpu,
            seq_lens=seq_lens.device,
            seq_lens_cpu_upper_bound=seq_lens.cpu,
            num_reqs=len(seq_lens.cpu),
            num_actual_tokens=num_tokens,
            max_query_len=longest[0],
            max_seq_len=longest[1],
            block_table_tensor=blocks[gid],
            slot_mapping=group_slots,
            causal=True,
        )
        for gid, group_slots in slots.items()
    }


@machine_code
def _lay_out(rows: Any, start: Any, length: Any, token_ids: Any, token_offset: int) -> Any:
    count, total, num_tokens = len(rows), length.sum(), token_ids.shape[1]
    starts, seq_lens = np.zeros(count + 1, np.int32), np.empty(count, np.int32)
    row_of, position = np.empty(total, np.int64), np.empty(total, np.int64)
    tokens = np.empty(total if num_tokens else 0, np.int32)
    end = 0
    for i, row in enumerate(rows):
        for place in range(start[i], start[i] + length[i]):
            row_of[end], position[end] = row, place
            if num_tokens:
                # A block of masks begins with the row's newest token and ends after it.
                tokens[end] = token_ids[row, min(place + token_offset, num_tokens - 1)]
            end += 1
        starts[i + 1], seq_lens[i] = end, start[i] + length[i]
    return row_of, position, starts, seq_lens, tokens


@machine_code
def _find_slots(blocks: Any, row: Any, position: Any, size: int, slots: Any) -> None:
    count, last_column = len(row), blocks.shape[1] - 1
    for i, place in enumerate(position):
        block = blocks[row[i % count], min(place // size, last_column)]
        slots[i] = np.int64(block) * size + place % size
