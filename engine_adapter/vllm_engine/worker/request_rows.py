"""The live requests of vLLM's runner, with mirrors on the host of their tokens and blocks.

vLLM sorts its batch in every step, and keeps the state of a request at one index while it runs.
That index is the request's row here, so a row stays the same from step to step.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.proposers.machine_code import machine_code


class RowBlocks:
    """The blocks of every row in one KV cache group; vLLM's and their mirror.

    Args:
        on_device: int32 [B, W], vLLM's.
        block_size: tokens per block.

    Attributes:
        block_size: see above.
    """

    def __init__(self, on_device: torch.Tensor, block_size: int) -> None:
        self._on_device = on_device
        self._blocks = np.zeros(tuple(on_device.shape), np.int32)
        self.block_size = block_size

    def get_numpy_array(self) -> npt.NDArray[np.int32]:
        """int32 [B, W], on the host."""
        return self._blocks

    def get_device_tensor(self, num_reqs: int) -> torch.Tensor:
        """The blocks of the first rows, int32 [num_reqs, W]."""
        return self._on_device[:num_reqs]


class RowTables:
    """The block tables of every KV cache group.

    Args:
        tables: vLLM's `BlockTables`; `None` before the KV cache has its memory.

    Attributes:
        block_tables: one for each group.
    """

    def __init__(self, tables: Any = None) -> None:
        self._lengths = None if tables is None else tables.num_blocks.np
        pairs = () if tables is None else zip(tables.block_tables, tables.block_sizes, strict=True)
        self.block_tables = [RowBlocks(table.gpu, size) for table, size in pairs]

    def __getitem__(self, gid: int) -> RowBlocks:
        return self.block_tables[gid]

    def append(self, row: int, blocks: Sequence[Sequence[int]]) -> None:
        """Takes the blocks, by group, that vLLM has just appended to a row."""
        for gid, group_blocks in enumerate(blocks):
            stop = int(self._lengths[gid, row])  # type: ignore[index]
            mirror = self.block_tables[gid].get_numpy_array()
            mirror[row, stop - len(group_blocks) : stop] = group_blocks


class RequestRows:
    """The rows; what dispatch and proposers read of a batch. B is the most requests.

    Args:
        states: vLLM's `RequestState`.

    Attributes:
        token_ids_cpu: int32 [B, max_model_len], the committed tokens of each row.
        num_tokens_no_spec: int32 [B], how many they are.
        block_table: the rows' blocks.
    """

    def __init__(self, states: Any) -> None:
        self._states = states
        self._sampling: Any = None
        self.token_ids_cpu = np.zeros((states.max_num_reqs, states.max_model_len), np.int32)
        self.num_tokens_no_spec = np.zeros(states.max_num_reqs, np.int32)
        self._num_computed = np.zeros(states.max_num_reqs, np.int32)
        self.block_table = RowTables()
        # An append of no rows: its code is compiled here, and not in the first step.
        self.append(np.zeros(0, np.int64), np.zeros((0, 1), np.int64), np.zeros(0, np.int32))

    @property
    def req_id_to_index(self) -> Mapping[str, int]:
        """Request id -> its row."""
        rows: Mapping[str, int] = self._states.req_id_to_index
        return rows

    @property
    def req_ids(self) -> Mapping[int, str]:
        """Row -> request id."""
        ids: Mapping[int, str] = self._states.index_to_req_id
        return ids

    @property
    def num_prompt_tokens(self) -> npt.NDArray[np.int32]:
        """int32 [B]."""
        lengths: npt.NDArray[np.int32] = self._states.prompt_len.np
        return lengths

    @property
    def num_computed_tokens_cpu(self) -> npt.NDArray[np.int32]:
        """How many tokens of each row the target had read before the step, int32 [B].

        Valid for the rows of the newest `append`.
        """
        return self._num_computed

    @property
    def temperature_cpu(self) -> npt.NDArray[np.float32]:
        """0 for a greedy row, float32 [B]."""
        temperature: npt.NDArray[np.float32] = self._sampling.temperature.np
        return temperature

    @property
    def top_k_cpu(self) -> npt.NDArray[np.int32]:
        """The vocabulary's size for a row without, int32 [B]."""
        top_k: npt.NDArray[np.int32] = self._sampling.top_k.np
        return top_k

    @property
    def top_p_cpu(self) -> npt.NDArray[np.float32]:
        """1 for a row without, float32 [B]."""
        top_p: npt.NDArray[np.float32] = self._sampling.top_p.np
        return top_p

    def bind_sampling(self, states: Any) -> None:
        """Takes vLLM's `SamplingStates`, which it makes after the target is loaded."""
        self._sampling = states

    def add(self, requests: Iterable[Any]) -> None:
        """Takes requests, as vLLM's `NewRequestData`, that vLLM has just given rows.

        One that was preempted comes again, with its output.
        """
        for request in requests:
            row, tokens = self.req_id_to_index[request.req_id], request.prefill_token_ids
            self.token_ids_cpu[row, : len(tokens)] = tokens
            self.num_tokens_no_spec[row] = len(tokens)
            self.block_table.append(row, request.block_ids)

    def add_blocks(self, cached: Any) -> None:
        """Takes the new blocks of running requests, from vLLM's `CachedRequestData`."""
        for request_id, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if blocks is not None:
                self.block_table.append(self.req_id_to_index[request_id], blocks)

    def num_computed_before(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int32]:
        """How many tokens of each of R rows the target had read before the step, int32 [R].

        Called before `append` takes what the step emitted.
        """
        # vLLM's number counts drafts that are rejected, if the step was scheduled before that was
        # known. The newest token is never read before the step.
        computed = self._states.num_computed_tokens_np[rows]
        return np.minimum(computed, self.num_tokens_no_spec[rows] - 1)

    def append(
        self,
        rows: npt.NDArray[np.intp],
        emitted: npt.NDArray[np.int64],
        counts: npt.NDArray[np.integer[Any]],
    ) -> npt.NDArray[np.int64]:
        """Takes the tokens that a step emitted; returns how many, for each of the B rows.

        Args:
            rows: [R], those of the step.
            emitted: [R, width].
            counts: int [R], how many tokens of each of the R rows of `emitted` were emitted.
        """
        num_sampled = np.zeros(len(self.num_tokens_no_spec), np.int64)
        _append(
            *(self.token_ids_cpu, self.num_tokens_no_spec, self._num_computed, num_sampled),
            *(self._states.num_computed_tokens_np, rows, emitted, counts),
        )
        return num_sampled


@machine_code
def _append(
    token_ids: Any,
    num_tokens: Any,
    num_computed: Any,
    num_sampled: Any,
    num_computed_by_states: Any,
    rows: Any,
    emitted: Any,
    counts: Any,
) -> None:
    for place, row in enumerate(rows):
        length, count = num_tokens[row], counts[place]
        num_computed[row] = min(num_computed_by_states[row], length - 1)
        for i in range(count):
            token_ids[row, length + i] = emitted[place, i]
        num_tokens[row] += count
        num_sampled[row] = count
