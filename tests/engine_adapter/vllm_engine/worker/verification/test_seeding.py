"""Seeds of positions: they depend on the request's seed and on the position."""

import numpy as np
import torch

from engine_adapter.vllm_engine.worker.verification.seeding import GeneratorPool, position_seeds


def test_position_seeds_do_not_collide_or_line_up() -> None:
    positions = np.arange(200)
    seeds = {s for seed in range(-50, 50) for s in position_seeds([seed] * 200, positions).tolist()}
    assert len(seeds) > 19_990  # 20,000 values of 32 bits: a collision or two are chance
    assert all(0 <= seed < 2**32 for seed in seeds)
    one, other = position_seeds([1, 2], np.array([2, 1]))
    assert one != other


def test_a_position_seed_is_splitmix64s_of_the_seed_and_the_position() -> None:
    mask = 2**64 - 1

    def plain(seed: int, position: int) -> int:
        mixed = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03) & mask
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
        return (mixed ^ (mixed >> 31)) >> 32

    seeds, positions = [0, 1, -1, 42, 2**63 + 5, -(2**70)], np.array([0, 7, 9, 131_071, 3, 4])
    wanted = [plain(s, p) for s, p in zip(seeds, positions.tolist(), strict=True)]
    assert position_seeds(seeds, positions).tolist() == wanted


def test_generators_are_seeded_again_and_not_made_again() -> None:
    pool = GeneratorPool(torch.device("cpu"))
    first = pool.seeded([3, 5], np.array([30, 50], np.uint64))
    assert {key: one.initial_seed() for key, one in first.items()} == {3: 30, 5: 50}
    second = pool.seeded([5, 7, 9], np.array([1, 2, 3], np.uint64))
    assert {key: one.initial_seed() for key, one in second.items()} == {5: 1, 7: 2, 9: 3}
    assert set(map(id, first.values())) <= set(map(id, second.values()))
    assert pool.seeded([], np.array([], np.uint64)) == {}
