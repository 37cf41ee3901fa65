"""The runner's hooks: seeds, metadata and values that are handed from one hook to another."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.wire import DraftReport
from engine_adapter.vllm_engine.worker.runner import RunnerHooks, StepState
from engine_adapter.vllm_engine.worker.verification.seeding import GeneratorPool, position_seeds


class Base:
    """The methods of vLLM's runner that the hooks call."""

    sampled_with: Any = "nothing"

    def _sample(self, logits: Any, metadata: Any) -> Any:
        self.sampled_with = metadata
        return "output"


class Hooked(RunnerHooks, Base):
    query_start_loc: Any
    input_ids: Any
    discard_request_mask: Any

    def __init__(self, seeds: dict[int, int], tokens: list[int]) -> None:
        self.device = torch.device("cpu")
        self._step = StepState()
        self._generators = GeneratorPool(self.device)
        self.sampled: dict[int, Any] = {}
        store = SimpleNamespace(pop_for_verification=lambda *_: self.sampled)
        self.drafter = SimpleNamespace(sampled_drafts=store)
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


# -- set-up ----------------------------------------------------------------------------------


@pytest.mark.needs_vllm
def test_layers_of_draft_models_keep_every_position_and_the_targets_do_not() -> None:
    from engine_adapter.vllm_engine.worker.proposer_host import ProposerHost

    size = {"block_size": 32, "num_kv_heads": 2, "head_size": 64, "dtype": torch.float32}
    window = compat.SlidingWindowSpec(**size, sliding_window=48)

    class WithSpecs(Base):
        def get_kv_cache_spec(self) -> dict[str, Any]:
            return {"target.0": window, "draft.0": window, "draft.1": window}

    class Runner(Hooked, WithSpecs): ...

    runner = Runner({}, [])
    # The last layer uses the KV of another one.
    models: Any = {"draft": SimpleNamespace(layer_names={"draft.0", "draft.1", "draft.2"})}
    runner.drafter.host = host = object.__new__(ProposerHost)
    host.draft_models = models
    specs = runner.get_kv_cache_spec()
    full = compat.FullAttentionSpec(**size)
    assert specs == {"target.0": window, "draft.0": full, "draft.1": full}


# -- forward ---------------------------------------------------------------------------------


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


# -- verify ----------------------------------------------------------------------------------


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
    inputs = runner._get_spec_decode_draft_probs(dropped)
    assert inputs is not None
    assert inputs.drafts == {1: "draft"}


def generators(runner: Hooked) -> Any:
    """The generators that the verifier gets."""
    inputs = runner._get_spec_decode_draft_probs(None)
    assert inputs is not None
    return inputs.generators


def test_generators_are_seeded_by_seed_and_token_for_seeded_rows_only() -> None:
    runner = Hooked({1: 42}, [5, 30])
    runner._sample(None, metadata([1, 2]))
    seeds = {at: g.initial_seed() for at, g in generators(runner).items()}
    wanted = position_seeds([42] * 3, np.array([30, 31, 32])).tolist()
    assert seeds == dict(zip((2, 3, 4), wanted, strict=True))
    assert runner.input_batch.generators[1].initial_seed() == wanted[0]


def test_generators_of_rows_that_left_are_forgotten() -> None:
    runner = Hooked({1: 42}, [5, 30])
    runner._sample(None, metadata([2, 0]))
    assert generators(runner)
    runner.input_batch.generators.clear()
    runner._sample(None, metadata([2, 0]))
    assert generators(runner) == {}


@pytest.mark.parametrize("discarded", [0, 1])
def test_a_generator_of_a_row_in_mid_prompt_is_not_wound_back(discarded: int) -> None:
    """vLLM would, and CPU generators cannot: the engine would die."""
    seen: list[int] = []

    class WithBookkeeping(Base):
        def _bookkeeping_sync(self) -> str:
            seen.extend(self.input_batch.generators)  # type: ignore[attr-defined]
            return "done"

    class Runner(Hooked, WithBookkeeping): ...

    runner = Runner({0: 1, 1: 2}, [5, 6])
    mask = np.array([False, False])
    mask[discarded] = True
    runner.discard_request_mask = SimpleNamespace(np=mask)
    assert runner._bookkeeping_sync() == "done"
    assert seen == [1 - discarded]
    assert set(runner.input_batch.generators) == {0, 1}


# -- draft -----------------------------------------------------------------------------------


def test_the_report_leaves_once_with_the_output_of_its_step() -> None:
    class WithSampling(Base):
        def sample_tokens(self, grammar_output: Any) -> Any:
            if grammar_output:
                step = SimpleNamespace(
                    total_num_scheduled_tokens=1,
                    num_scheduled_tokens={"r0": 1},
                    specgate_plan={"r0": "method"},
                )
                slots = SimpleNamespace(slot_mapping=torch.zeros(1))
                state = torch.zeros(1, 1)
                self.propose_draft_token_ids(  # type: ignore[attr-defined]
                    step, [[5]], None, state, state, None, None, slots, None
                )
            return SimpleNamespace()

    class Runner(Hooked, WithSampling): ...

    runner, report = Runner({}, [5]), DraftReport()
    runner.drafter.store_states = lambda *args: None
    runner.drafter.propose = lambda plan, step: ([[7]], report)
    assert not hasattr(runner.sample_tokens(False), "specgate_report")
    assert runner.sample_tokens(True).specgate_report is report
    assert not hasattr(runner.sample_tokens(False), "specgate_report")
