"""Numbers that two ranks compare, each in a process of its own."""

from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import distributed

from engine_adapter.vllm_engine.worker.drafting import tensor_parallel

pytestmark = pytest.mark.needs_vllm

NUMBERS = ([10, 20, -1, 30], [10, 21, -1, -1])
"""Of rank 0 and of rank 1."""


def compare(rank: int, meeting_place: str, results: Any) -> None:
    """What a rank does."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{meeting_place}", rank=rank, world_size=2
    )
    group = SimpleNamespace(cpu_group=distributed.group.WORLD, ranks=[0, 1])
    state = SimpleNamespace(get_tp_group=lambda: group)
    vars(tensor_parallel)["compat"] = SimpleNamespace(parallel_state=state)
    shared = tensor_parallel.are_shared(NUMBERS[rank])
    results.put((rank, shared, tensor_parallel.share_lengths(NUMBERS[rank])))
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def by_rank(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[list[bool], list[int]]]:
    """Rank -> what it hears of both comparisons."""
    context = get_context("spawn")
    results, place = context.Queue(), str(Path(tmp_path_factory.mktemp("ranks")) / "meeting")
    ranks = [context.Process(target=compare, args=(rank, place, results)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    heard = {}
    for _ in ranks:
        rank, shared, lengths = results.get(timeout=120)
        heard[rank] = shared, lengths
    for process in ranks:
        process.join(timeout=60)
    return heard


def test_both_ranks_know_which_numbers_are_the_same(by_rank: Any) -> None:
    assert by_rank[0][0] == by_rank[1][0] == [True, False, True, False]


def test_both_ranks_have_the_lengths_of_rank_0(by_rank: Any) -> None:
    assert by_rank[0][1] == by_rank[1][1] == NUMBERS[0]
