"""The verification rule: which tokens a row emits, and under what each position is sampled."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.vllm_engine.worker.runner import RunnerHooks
from engine_adapter.vllm_engine.worker.verification.layout import Positions, noise_key
from engine_adapter.vllm_engine.worker.verification.verifier import _outputs_at, _pad


def emitted(counts: list[int], drafts: list[int], samples: list[int]) -> list[list[int]]:
    positions = Positions(counts, torch.device("cpu"))
    output = positions.keep_agreeing(torch.tensor(drafts), torch.tensor(samples))
    return [[token for token in row if token >= 0] for row in output.tolist()]


def by_hand(counts: list[int], drafts: list[int], samples: list[int]) -> list[list[int]]:
    rows = []
    for count in counts:
        mine, drafts = drafts[:count], drafts[count:]
        seen, samples = samples[: count + 1], samples[count + 1 :]
        kept = 0
        while kept < count and mine[kept] == seen[kept]:
            kept += 1
        rows.append(seen[: kept + 1])
    return rows


def test_a_row_emits_its_samples_up_to_the_first_that_differs() -> None:
    assert emitted([2, 0, 3], [5, 6, 7, 8, 9], [5, 6, 1, 2, 7, 0, 9, 4]) == [[5, 6, 1], [2], [7, 0]]


def test_emission_is_the_rule_for_any_mix_of_rows() -> None:
    rng = np.random.default_rng(3)
    for _ in range(300):
        counts = rng.integers(0, 6, rng.integers(1, 9)).tolist()
        if not sum(counts):
            continue
        drafts = rng.integers(0, 2, sum(counts)).tolist()
        samples = rng.integers(0, 2, sum(counts) + len(counts)).tolist()
        assert emitted(counts, drafts, samples) == by_hand(counts, drafts, samples)


def test_each_position_sees_the_drafts_before_it() -> None:
    positions = Positions([2, 0, 1], torch.device("cpu"))
    seen = _outputs_at([[1], [2, 2], []], positions, [7, 8, 9])
    assert seen == [[1], [1, 7], [1, 7, 8], [2, 2], [], [9]]
    assert [list(positions.of_row(row)) for row in range(3)] == [
        [(0, 0), (1, 1), (2, 2)],
        [(3, 0)],
        [(4, 0), (5, 1)],
    ]


def test_logprobs_follow_the_layout_of_the_output() -> None:
    class Logprobs(tuple):  # as vLLM's, whose first three entries are per position
        def __new__(cls, *tensors: torch.Tensor) -> "Logprobs":
            return super().__new__(cls, tensors)

    positions = Positions([1, 0], torch.device("cpu"))
    entries = torch.tensor([[10.0], [11.0], [20.0]])
    padded = _pad(Logprobs(entries.int(), entries, entries[:, 0]), positions)
    assert padded[1].shape == (4, 1)
    assert padded[1][:3, 0].tolist() == [10, 11, 20]


def test_noise_keys_of_seeds_and_positions_do_not_collide_or_line_up() -> None:
    keys = {noise_key(seed, position) for seed in range(-50, 50) for position in range(200)}
    assert len(keys) > 19_990  # 20,000 draws of 32 bits: a collision or two are chance
    assert all(0 <= key < 2**32 for key in keys)
    assert noise_key(1, 2) != noise_key(2, 1)


class Base:
    """What the hooks call of vLLM's runner."""

    sampled_with: Any = "nothing"

    def _sample(self, logits: Any, metadata: Any) -> Any:
        self.sampled_with = metadata
        return "output"


class Hooked(RunnerHooks, Base):
    def __init__(self, seeds: dict[int, int], tokens: list[int]) -> None:
        self.device = torch.device("cpu")
        self.rejection_sampler = SimpleNamespace(generators={99: None})
        self.sampled: dict[int, Any] = {}
        take = SimpleNamespace(take=lambda counts: self.sampled)
        self.drafter = SimpleNamespace(sampled=take)
        self.requests = {
            f"r{row}": SimpleNamespace(sampling_params=SimpleNamespace(seed=seed))
            for row, seed in seeds.items()
        }
        self.input_batch = SimpleNamespace(
            num_reqs=len(tokens),
            req_ids=[f"r{row}" for row in range(len(tokens))],
            generators={row: torch.Generator() for row in seeds},
            num_tokens_no_spec=np.array(tokens),
        )


def metadata(counts: list[int]) -> Any:
    return SimpleNamespace(num_draft_tokens=counts)


def test_a_step_without_drafts_is_sampled_plainly() -> None:
    runner = Hooked({}, [5, 6])
    assert runner._sample(None, metadata([0, 0])) == "output"
    assert runner.sampled_with is None
    drafted = metadata([0, 1])
    runner._sample(None, drafted)
    assert runner.sampled_with is drafted


def test_a_step_whose_sampled_drafts_were_all_dropped_is_verified() -> None:
    runner = Hooked({}, [5, 6])
    runner.sampled = {1: "draft"}
    dropped = metadata([0, 0])
    runner._sample(None, dropped)
    assert runner.sampled_with is dropped
    assert runner._get_spec_decode_draft_probs(dropped) == {1: "draft"}


def test_noise_is_keyed_by_seed_and_token_for_seeded_rows_only() -> None:
    runner = Hooked({1: 42}, [5, 30])
    runner._sample(None, metadata([1, 2]))
    seeds = {at: g.initial_seed() for at, g in runner.rejection_sampler.generators.items()}
    assert seeds == {2: noise_key(42, 30), 3: noise_key(42, 31), 4: noise_key(42, 32)}
    assert runner.input_batch.generators[1].initial_seed() == noise_key(42, 30)


def test_generators_of_rows_that_left_are_forgotten() -> None:
    runner = Hooked({}, [5])
    runner._sample(None, metadata([2]))
    assert runner.rejection_sampler.generators == {}


@pytest.mark.parametrize("unread", [0, 1])
def test_a_generator_of_a_row_in_mid_prompt_is_not_wound_back(unread: int) -> None:
    """vLLM would, and CPU generators cannot: the engine dies."""
    seen: list[int] = []

    class WithBookkeeping(Hooked):
        def _sample(self, *args: Any) -> Any: ...

    class Books(Base):
        def _bookkeeping_sync(self) -> str:
            seen.extend(self.input_batch.generators)  # type: ignore[attr-defined]
            return "books"

    class Runner(WithBookkeeping, Books): ...

    runner = Runner({0: 1, 1: 2}, [5, 6])
    mask = np.array([False, False])
    mask[unread] = True
    runner.discard_request_mask = SimpleNamespace(np=mask)
    assert runner._bookkeeping_sync() == "books"
    assert seen == [1 - unread]
    assert set(runner.input_batch.generators) == {0, 1}


def test_only_a_step_with_drafts_has_vllms_metadata() -> None:
    class WithMetadata(Base):
        def _calc_spec_decode_metadata(self, drafts: Any, ends: Any) -> str:
            return "vLLM's"

    class Runner(Hooked, WithMetadata): ...

    runner = Runner({}, [])
    runner.query_start_loc = SimpleNamespace(gpu=torch.tensor([0, 3, 4, 9, 9]))
    runner.input_ids = SimpleNamespace(gpu=torch.zeros(16, dtype=torch.int32))
    ends = np.array([3, 4, 9])
    assert runner._calc_spec_decode_metadata(np.array([0, 2, 0]), ends) == "vLLM's"
    plain = runner._calc_spec_decode_metadata(np.array([0, 0, 0]), ends)
    assert plain.logits_indices.tolist() == [2, 3, 8], "each row's last token"
    assert (plain.num_draft_tokens, len(plain.draft_token_ids)) == ([0, 0, 0], 0)
