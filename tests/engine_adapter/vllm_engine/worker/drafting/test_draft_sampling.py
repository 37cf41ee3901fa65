"""Sampled drafts: drawn from what is said of them, in step with a seed, kept until verified."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from engine_adapter.errors import EngineConfigError
from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.methods import parse_spec
from engine_adapter.vllm_engine.worker.drafting.draft_sampling import RowSampler, SampledDrafts
from engine_adapter.vllm_engine.worker.verification.layout import noise_key
from tests.engine_adapter.vllm_engine.support.exact import ALPHA, Sampling, distribution, p_value

V = 8
LOGITS = np.random.default_rng(5).normal(0, 1.5, V)


def row_sampler(rows: int, sampling: Sampling, seeds: list[int | None] | None = None) -> RowSampler:
    from vllm.v1.sample.sampler import Sampler

    return RowSampler(
        Sampler(),
        np.full(rows, sampling.temperature, np.float32),
        np.full(rows, sampling.top_k or V, np.int32),
        np.full(rows, sampling.top_p, np.float32),
        seeds or [None] * rows,
        np.arange(100, 100 + rows),
    )


@pytest.mark.needs_vllm
@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0.7), Sampling(top_k=3), Sampling(top_p=0.8)],
    ids=str,
)
def test_drafts_are_drawn_from_what_is_said_of_them(sampling: Sampling) -> None:
    torch.manual_seed(3)
    rows = 75_000
    logits = torch.from_numpy(LOGITS).float().expand(rows, V)
    tokens, said = row_sampler(rows, sampling).draw(logits, np.arange(rows), 0)
    exact = distribution(LOGITS, sampling)
    assert said[0].numpy() == pytest.approx(exact, abs=1e-6)
    assert p_value(np.bincount(tokens, minlength=V), exact) > ALPHA
    assert p_value(np.bincount(tokens, minlength=V), distribution(LOGITS, Sampling(0.85))) < ALPHA


@pytest.mark.needs_vllm
def test_a_greedy_row_takes_the_likeliest_token_beside_sampled_ones() -> None:
    sampler = row_sampler(3, Sampling())
    sampler.temperature[1] = 0.0
    logits = torch.from_numpy(LOGITS).float().expand(200, V)
    rows = np.resize([0, 1, 2], 200)
    tokens, _ = sampler.draw(logits, rows, 0)
    assert set(tokens[rows == 1].tolist()) == {int(LOGITS.argmax())}
    assert len(set(tokens[rows == 0].tolist())) > 1


@pytest.mark.needs_vllm
def test_a_seeded_row_draws_with_the_noise_that_the_target_uses_there() -> None:
    """So what the target drafts for itself is what it emits, at any temperature."""
    from vllm.v1.sample.sampler import Sampler

    rows, depth = 50, 2
    logits = torch.randn(rows, V, generator=torch.Generator().manual_seed(1))
    sampler = row_sampler(rows, Sampling(temperature=0.8), [*range(rows)])
    tokens, _ = sampler.draw(logits, np.arange(rows), depth)
    generators = {
        i: torch.Generator().manual_seed(noise_key(i, 100 + i + depth)) for i in range(rows)
    }
    target, _ = Sampler().topk_topp_sampler(logits / 0.8, generators, None, None)
    assert tokens.tolist() == target.tolist()
    assert tokens.tolist() != sampler.draw(logits, np.arange(rows), depth + 1)[0].tolist()


# -- what is kept --------------------------------------------------------------------------------


def proposer(name: str, **options: str) -> ProposerSpec:
    return parse_spec({"name": name, "method": "draft_model", "model": "m"} | options)


GREEDY = proposer("greedy")
TOKEN = proposer("token", draft_sampling="probabilistic")
BLOCK = proposer("block", draft_sampling="probabilistic", verification="block")


class Runner:
    """What is read of vLLM's runner: three rows, of which one is seeded and one greedy."""

    sampler = None

    def __init__(self) -> None:
        self.input_batch = SimpleNamespace(
            req_ids=["free", "seeded", "greedy"],
            generators={1: None},
            temperature_cpu=np.array([1.0, 1.0, 0.0], np.float32),
            top_k_cpu=np.full(3, V, np.int32),
            top_p_cpu=np.ones(3, np.float32),
            num_tokens_no_spec=np.array([10, 20, 30]),
        )
        params = SimpleNamespace(seed=7)
        self.requests = {
            name: SimpleNamespace(sampling_params=params) for name in self.input_batch.req_ids
        }


def batch(rows: list[int]) -> DraftBatch:
    count = len(rows)
    return DraftBatch(
        rows=np.array(rows),
        request_ids=[["free", "seeded", "greedy"][row] for row in rows],
        num_tokens=np.array([10, 20, 30])[rows],
        num_prompt_tokens=np.ones(count, np.int64),
        num_computed=np.ones(count, np.int64),
        k=np.full(count, 3),
        token_ids=np.zeros((3, 64), np.int32),
    )


def kept_by(runner: Runner) -> SampledDrafts:
    return SampledDrafts(runner, [GREEDY, TOKEN, BLOCK])


def drafted(sampled: SampledDrafts, name: str = "token") -> SampledDrafts:
    asked = sampled.ask(name, batch([0, 1, 2]))
    q = list(torch.full((3, 3, V), 1 / V).unbind(0))
    sampled.keep(name, asked, Drafts([[1, 2, 3], [4, 5, 6], [7, 0, 1]], q))
    return sampled


def test_only_rows_that_are_sampled_without_a_seed_are_kept() -> None:
    taken = drafted(kept_by(Runner())).take([3, 3, 3])
    assert {row: draft.tokens.tolist() for row, draft in taken.items()} == {0: [1, 2, 3]}
    assert taken[0].probabilities.shape == (3, V)
    assert not taken[0].block


def test_the_first_dropped_draft_is_among_those_that_are_verified() -> None:
    for scheduled, judged in ((0, 1), (1, 2), (2, 3), (3, 3)):
        taken = drafted(kept_by(Runner())).take([scheduled, 0, 0])
        assert len(taken[0].tokens) == len(taken[0].probabilities) == judged
    assert len(drafted(kept_by(Runner())).take(None)[0].tokens) == 1


def test_drafts_are_verified_once_where_they_were_made_and_by_their_request() -> None:
    runner = Runner()
    sampled = drafted(kept_by(runner))
    assert sampled.take([3, 3, 3])
    assert not sampled.take([3, 3, 3])
    drafted(sampled)
    runner.input_batch.num_tokens_no_spec[0] += 1
    assert not sampled.take([3, 3, 3])
    drafted(sampled).forget(["free"])
    assert not sampled.take([3, 3, 3])
    drafted(sampled)
    runner.input_batch.req_ids = ["greedy", "other", "free"]
    runner.input_batch.num_tokens_no_spec[2] = 10
    assert list(sampled.take([3, 3, 3])) == [2]


def test_drafts_of_a_request_that_is_not_in_this_step_wait() -> None:
    runner = Runner()
    sampled = drafted(kept_by(runner))
    everyone, runner.input_batch.req_ids = runner.input_batch.req_ids, ["other"]
    assert not sampled.take([1])
    runner.input_batch.req_ids = everyone
    assert list(sampled.take([3, 3, 3])) == [0]


def test_a_batch_is_drafted_greedily_unless_the_proposer_samples_and_a_row_does() -> None:
    sampled = kept_by(Runner())
    assert sampled.ask("greedy", batch([0, 1])).sampling is None
    assert sampled.ask("token", batch([2])).sampling is None
    asked = sampled.ask("token", batch([0, 1, 2])).select(np.array([2, 1]))
    assert isinstance(asked.sampling, RowSampler)
    assert asked.sampling.seeds == [None, 7]
    assert asked.sampling.temperature.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_sampling": "often"}, "draft_sampling must be 'greedy' or 'probabilistic'"),
        ({"verification": "tree"}, "verification must be 'token' or 'block', got 'tree'"),
        ({"verification": "block"}, 'it needs draft_sampling "probabilistic"'),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(EngineConfigError, match=message):
        proposer("d", **options)


def test_the_block_rule_goes_with_the_drafts_of_the_proposer_that_asks_for_it() -> None:
    assert drafted(kept_by(Runner()), "block").take([3, 3, 3])[0].block
