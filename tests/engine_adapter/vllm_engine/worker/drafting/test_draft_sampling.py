"""Sampled drafts: sampled from their stated distributions, seeded, stored until verified."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.methods import parse_spec
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.vllm_engine.worker.constraints import RowConstraints
from engine_adapter.vllm_engine.worker.drafting import draft_sampling
from engine_adapter.vllm_engine.worker.drafting.draft_noise import DraftNoise
from engine_adapter.vllm_engine.worker.drafting.draft_sampling import RowSampler, SampledDraftStore
from engine_adapter.vllm_engine.worker.runner import RunnerHooks
from engine_adapter.vllm_engine.worker.verification.rejection import SampledDraft
from tests.engine_adapter.vllm_engine.support.dispatch_harness import idle_sampler
from tests.engine_adapter.vllm_engine.support.exact import ALPHA, Sampling, distribution, p_value
from tests.engine_adapter.vllm_engine.support.v2_states import rows_of, sampler_of

V = 8
LOGITS = np.random.default_rng(5).normal(0, 1.5, V)


def row_sampler(rows: int, sampling: Sampling, seeds: list[int | None] | None = None) -> RowSampler:
    return RowSampler(
        DraftNoise(idle_sampler()),
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
def test_drafts_are_sampled_from_their_stated_distributions(sampling: Sampling) -> None:
    torch.manual_seed(3)
    rows = 75_000
    logits = torch.from_numpy(LOGITS).float().expand(rows, V)
    tokens, stated = row_sampler(rows, sampling).draw(logits, np.arange(rows), 0)
    exact = distribution(LOGITS, sampling)
    assert stated is not None
    assert stated[0].numpy() == pytest.approx(exact, abs=1e-6)
    assert p_value(np.bincount(tokens, minlength=V), exact) > ALPHA
    assert p_value(np.bincount(tokens, minlength=V), distribution(LOGITS, Sampling(0.85))) < ALPHA


@pytest.mark.needs_vllm
def test_a_greedy_row_beside_sampled_ones_takes_the_likeliest_token() -> None:
    sampler = row_sampler(3, Sampling())
    sampler.temperature[1] = 0.0
    logits = torch.from_numpy(LOGITS).float().expand(200, V)
    rows = np.resize([0, 1, 2], 200)
    tokens, _ = sampler.draw(logits, rows, 0)
    assert set(tokens[rows == 1].tolist()) == {int(LOGITS.argmax())}
    assert len(set(tokens[rows == 0].tolist())) > 1


@pytest.mark.needs_vllm
def test_a_seeded_row_samples_with_the_noise_of_the_target() -> None:
    """So the target as its own draft model emits its drafts, at any temperature."""
    seeds, depth = [3, -5, 2**62], 2
    requests = [([1], [2], {"temperature": 0.8, "seed": seed}) for seed in seeds]
    target = sampler_of(V, requests)
    rows = rows_of(target, range(3))
    drafting = RowSampler(
        DraftNoise(target),
        np.full(3, 0.8, np.float32),
        np.full(3, V, np.int32),
        np.ones(3, np.float32),
        seeds,
        np.arange(20, 23),
    )
    others = 0
    for draw in range(20):
        logits = torch.randn(3, V, generator=torch.Generator().manual_seed(draw))
        tokens, _ = drafting.draw(logits, np.arange(3), depth)
        of_target, _ = target.sample(
            logits,
            torch.from_numpy(rows),
            torch.from_numpy(rows),
            rows,
            torch.arange(20, 23) + depth - 1,  # at the token before
            torch.zeros(3, dtype=torch.int32),
            torch.zeros(3, dtype=torch.int32),
            np.full(3, 30),
        )
        assert tokens.tolist() == of_target.tolist()
        others += int((tokens != drafting.draw(logits, np.arange(3), depth + 1)[0]).sum())
    assert others > 10


# -- what is stored --------------------------------------------------------------------------


def proposer(name: str, **options: Any) -> ProposerSpec:
    return parse_spec({"name": name, "method": "draft_model", "model": "m"} | options)


GREEDY = proposer("greedy")
TOKEN = proposer("token", draft_sampling="probabilistic")
BLOCK = proposer("block", draft_sampling="probabilistic", verification="block")
MTP = parse_spec({"name": "mtp", "draft_sampling": "probabilistic"})


class Runner:
    """The used fields of vLLM's runner: three rows, of which one is seeded and one greedy."""

    device = torch.device("cpu")
    parallel_config = SimpleNamespace(world_size=1)

    row_options = RunnerHooks.row_options

    def __init__(self) -> None:
        self.sampler = idle_sampler()
        self.draft_noise = DraftNoise(self.sampler)
        self.input_batch = SimpleNamespace(
            req_ids=["free", "seeded", "greedy"],
            req_id_to_index={"free": 0, "seeded": 1, "greedy": 2},
            temperature_cpu=np.array([1.0, 1.0, 0.0], np.float32),
            top_k_cpu=np.full(3, V, np.int32),
            top_p_cpu=np.ones(3, np.float32),
            num_tokens_no_spec=np.array([10, 20, 30]),
        )
        self.requests = {
            name: SimpleNamespace(sampling_params=SimpleNamespace(seed=seed))
            for name, seed in {"free": None, "seeded": 7, "greedy": None}.items()
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


def new_store(runner: Runner) -> SampledDraftStore:
    config: Any = SimpleNamespace(structured_outputs_config=SimpleNamespace(backend="none"))
    return SampledDraftStore(runner, [GREEDY, TOKEN, BLOCK, MTP], RowConstraints(config, runner))


def filled(store: SampledDraftStore, name: str = "token") -> SampledDraftStore:
    """The store after a step in which all three rows were drafted for."""
    sampling = store.with_sampler(name, batch([0, 1, 2]))
    q = list(torch.full((3, 3, V), 1 / V).unbind(0))
    store.store(name, sampling, Drafts([[1, 2, 3], [4, 5, 6], [7, 0, 1]], q))
    return store


def popped(store: SampledDraftStore, counts: list[int]) -> Mapping[int, SampledDraft]:
    """The drafts for a step of every row of the batch."""
    step = SimpleNamespace(
        req_ids=store._runner.input_batch.req_ids,
        idx_mapping_np=np.arange(len(counts)),
        cu_num_logits_np=np.cumsum([0, *(count + 1 for count in counts)]),
    )
    return store.pop_for_verification(step)


def test_only_drafts_of_sampled_rows_without_a_seed_are_stored() -> None:
    taken = popped(filled(new_store(Runner())), [3, 3, 3])
    assert {row: draft.tokens.tolist() for row, draft in taken.items()} == {0: [1, 2, 3]}
    assert taken[0].probabilities.shape == (3, V)
    assert not taken[0].block


def test_the_first_dropped_draft_is_verified_too() -> None:
    for scheduled, verified in ((0, 1), (1, 2), (2, 3), (3, 3)):
        taken = popped(filled(new_store(Runner())), [scheduled, 0, 0])
        assert len(taken[0].tokens) == len(taken[0].probabilities) == verified


def test_drafts_are_verified_once_at_their_position_by_their_request() -> None:
    runner = Runner()
    store = filled(new_store(runner))
    assert popped(store, [3, 3, 3])
    assert not popped(store, [3, 3, 3])
    filled(store)
    runner.input_batch.num_tokens_no_spec[0] += 1
    assert not popped(store, [3, 3, 3])
    filled(store).forget(["free"])
    assert not popped(store, [3, 3, 3])
    filled(store)
    runner.input_batch.req_ids = ["greedy", "other", "free"]
    runner.input_batch.num_tokens_no_spec[2] = 10
    assert list(popped(store, [3, 3, 3])) == [2]


def test_drafts_of_a_request_that_is_not_in_this_step_stay_stored() -> None:
    runner = Runner()
    store = filled(new_store(runner))
    everyone, runner.input_batch.req_ids = runner.input_batch.req_ids, ["other"]
    assert not popped(store, [1])
    runner.input_batch.req_ids = everyone
    assert list(popped(store, [3, 3, 3])) == [0]


@pytest.mark.parametrize("is_shared", [True, False])
def test_drafts_that_another_rank_lacks_are_verified_by_none(
    is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank's drafts are known by their proposer and the tokens before them."""
    store, compared = filled(new_store(Runner())), []

    def are_shared(values: list[int]) -> list[bool]:
        compared.append(values)
        return [is_shared, True, True]

    monkeypatch.setattr(draft_sampling, "are_shared", are_shared)
    ids = ["free", "seeded", "greedy"]
    assert store.drop_unshared(ids) == ([] if is_shared else ["free"])
    assert [number == -1 for number in compared[0]] == [False, True, True]
    assert bool(popped(store, [3, 3, 3])) is is_shared


def test_the_drafts_of_another_proposer_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a cascade's next member, where the first failed on one rank."""
    compared: list[list[int]] = []

    def are_shared(values: list[int]) -> list[bool]:
        compared.append(values)
        return [True] * len(values)

    monkeypatch.setattr(draft_sampling, "are_shared", are_shared)
    for name in ("token", "block"):
        filled(new_store(Runner()), name).drop_unshared(["free"])
    assert compared[0] != compared[1]


def test_where_no_row_samples_the_ranks_compare_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def are_shared(values: list[int]) -> list[bool]:
        raise AssertionError("no rank has sampled drafts")

    monkeypatch.setattr(draft_sampling, "are_shared", are_shared)
    runner = Runner()
    assert new_store(runner).drop_unshared(["greedy", "ended"]) == []
    config: Any = SimpleNamespace(structured_outputs_config=SimpleNamespace(backend="none"))
    greedy = SampledDraftStore(runner, [GREEDY], RowConstraints(config, runner))
    assert greedy.drop_unshared(["free", "seeded"]) == []


def test_a_batch_gets_a_sampler_if_the_proposer_and_a_row_sample() -> None:
    store = new_store(Runner())
    assert store.with_sampler("greedy", batch([0, 1])).sampling is None
    assert store.with_sampler("token", batch([2])).sampling is None
    sampling = store.with_sampler("token", batch([0, 1, 2])).select(np.array([2, 1]))
    assert isinstance(sampling.sampling, RowSampler)
    assert sampling.sampling.seeds == [None, 7]
    assert sampling.sampling.temperature.tolist() == [0.0, 1.0]


def test_a_head_in_the_targets_checkpoint_draws_its_drafts_as_others_do() -> None:
    runner = Runner()
    store = new_store(runner)
    sampling = store.with_sampler("mtp", batch([0, 2])).sampling
    assert isinstance(sampling, RowSampler)
    assert sampling.temperature.tolist() == [1.0, 0.0]
    assert store.with_sampler("mtp", batch([2])).sampling is None
    runner.sampler.logits_processors.append(object())
    limited = store.with_sampler("mtp", batch([2])).sampling
    assert isinstance(limited, RowSampler)
    assert limited.limits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_sampling": "often"}, "draft_sampling must be 'greedy' or 'probabilistic'"),
        ({"verification": "tree"}, "verification must be 'token' or 'block', got 'tree'"),
        ({"verification": "block"}, 'it needs draft_sampling "probabilistic"'),
        ({"min_confidence": 1}, "min_confidence must be a number of at least 0 and below 1, got 1"),
        ({"min_confidence": -0.1}, "min_confidence must be a number of at least 0 and below 1"),
        ({"min_confidence": "0.5"}, "min_confidence must be a number of at least 0 and below 1"),
        ({"min_confidence": True}, "min_confidence must be a number of at least 0 and below 1"),
        ({"min_confidence": float("nan")}, "min_confidence must be a number of at least 0"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineConfigError, match=message):
        proposer("d", **options)


def test_drafts_of_a_proposer_with_the_block_rule_are_marked() -> None:
    assert popped(filled(new_store(Runner()), "block"), [3, 3, 3])[0].block


# -- the confidence gate ---------------------------------------------------------------------

SURE = proposer("sure", draft_sampling="probabilistic", min_confidence=0.5)


@pytest.mark.needs_vllm
def test_a_gate_follows_the_logits_and_not_the_temperature_or_the_token_that_is_drawn() -> None:
    from engine_adapter.vllm_engine.patches.v2_kernels import patch_v2_kernels

    patch_v2_kernels()
    runner: Any = Runner()
    store = new_store(runner)
    store.add_proposer(SURE)
    known = batch([0, 1, 2])
    sure = torch.tensor([0.6, 0.4, *[0.0] * (V - 2)]).log()
    drawn_tokens = set()
    for _ in range(40):
        drawn = store.with_sampler("sure", known)
        token = int(drawn.draw(sure.expand(3, V), 0)[0][0])
        assert store.cut(drawn, Drafts([[token]] * 3)).tokens == [[token]] * 3
        drawn_tokens.add(token)
    assert drawn_tokens == {0, 1}
    runner.input_batch.temperature_cpu[:] = [0.01, 0.01, 0.0]
    drawn = store.with_sampler("sure", known)
    drawn.draw(torch.zeros(3, V), 0)  # one of eight tokens, all as likely
    assert store.cut(drawn, Drafts([[1], [2], [3]])).tokens == [[], [], []]


def test_a_greedy_proposer_with_a_gate_needs_no_distributions() -> None:
    store = new_store(Runner())
    store.add_proposer(proposer("sure", min_confidence=0.5))
    drawn = store.with_sampler("sure", batch([0, 1, 2]))
    tokens, probabilities = drawn.draw(torch.tensor([[0, 9.0, 0], [0, 0.1, 0], [9.0, 0, 0]]), 0)
    assert (tokens.tolist(), probabilities) == ([1, 1, 0], None)
    assert store.cut(drawn, Drafts([[1], [1], [0]])).tokens == [[1], [], [0]]
    assert not drawn.is_done
    drawn.draw(torch.zeros(3, 4), 1)
    assert drawn.is_done


def test_a_proposer_that_is_loaded_again_without_a_gate_has_none() -> None:
    store = new_store(Runner())
    store.add_proposer(proposer("sure", min_confidence=0.5))
    store.add_proposer(proposer("sure"))
    assert store.with_sampler("sure", batch([2])).sampling is None
