"""Draft models on fewer tensor-parallel ranks than the target: each rank holds and runs it whole.

vLLM's layers ask for the tensor-parallel group when they are made and when they run. While a draft
model of size 1 loads or runs, they are given a group of one rank, so nothing is sent between ranks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from torch.distributed import get_backend

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.module_names import patch_tp_group


@contextmanager
def tensor_parallel(size: int) -> Iterator[None]:
    """Within it, layers are split over `size` ranks: 1, or as many as the target has.

    All ranks must enter it for the first time together.
    """
    state = compat.parallel_state
    if size == state.get_tensor_model_parallel_world_size():
        yield
        return
    assert size == 1
    with patch_tp_group(_alone()):
        yield


@cache
def _alone() -> Any:
    """A group of this rank alone. Making it takes all ranks."""
    state = compat.parallel_state
    world = state.get_world_group()
    return state.init_model_parallel_group(
        [[rank] for rank in range(world.world_size)],
        world.local_rank,
        get_backend(world.device_group),
        group_name="draft",
    )
