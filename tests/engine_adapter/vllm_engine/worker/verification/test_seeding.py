"""Seeds of positions: they depend on the request's seed and on the position."""

from engine_adapter.vllm_engine.worker.verification.seeding import position_seed


def test_position_seeds_do_not_collide_or_line_up() -> None:
    seeds = {position_seed(seed, position) for seed in range(-50, 50) for position in range(200)}
    assert len(seeds) > 19_990  # 20,000 values of 32 bits: a collision or two are chance
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert position_seed(1, 2) != position_seed(2, 1)
