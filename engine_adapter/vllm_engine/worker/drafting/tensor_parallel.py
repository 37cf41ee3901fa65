"""Draft models on one tensor-parallel rank: every rank of the target holds and runs all of it.

vLLM's layers read the tensor-parallel group when they are created and when they run. While a draft
model of size 1 loads or runs, that group is one of a single rank, so nothing is sent between ranks.
"""

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch.distributed import ReduceOp, all_reduce, broadcast, get_backend

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.module_names import patch_groups


def is_only_rank(parallel_config: Any) -> bool:
    """Whether no other rank drafts for the same rows, from vLLM's `ParallelConfig`.

    Other ranks must draft the same, so nothing may depend there on what only one of them knows.
    """
    return bool(parallel_config.world_size == 1)


def share_drafts(drafts: torch.Tensor) -> torch.Tensor:
    """Gives all ranks the drafts of rank 0, in place: int64 [R, K], on the device.

    The target's ranks read them together. One whose proposer has failed has none.
    """
    shared: torch.Tensor = compat.parallel_state.get_tp_group().broadcast(drafts, src=0)
    return shared


def share_lengths(lengths: list[int]) -> list[int]:
    """Gives all ranks the numbers of drafts of rank 0, by which the next step has its shape."""
    group, numbers = compat.parallel_state.get_tp_group(), torch.tensor(lengths)
    broadcast(numbers, src=group.ranks[0], group=group.cpu_group)
    shared: list[int] = numbers.tolist()
    return shared


def are_shared(values: list[int]) -> list[bool]:
    """Whether each of some numbers is the same on all ranks, which must call it together."""
    group, numbers = compat.parallel_state.get_tp_group(), torch.tensor(values)
    limits = torch.stack([numbers, -numbers])
    all_reduce(limits, ReduceOp.MAX, group=group.cpu_group)
    shared: list[bool] = (limits[0] == -limits[1]).tolist()
    return shared


def tensor_parallel(size: int) -> AbstractContextManager[None]:
    """A scope in which layers are split over `size` ranks: 1, or as many as the target has.

    All ranks must enter it together the first time.
    """
    group = compat.parallel_state.get_tp_group()
    if size != group.world_size:
        assert size == 1
        group = _single_rank_group()
    return patch_groups(group)


@cache
def _single_rank_group() -> Any:
    """A group of this rank only. All ranks must create it together."""
    state = compat.parallel_state
    world = state.get_world_group()
    return state.init_model_parallel_group(
        [[rank] for rank in range(world.world_size)],
        world.local_rank,
        get_backend(world.device_group),
        group_name="draft",
    )
