"""What requests allow at drafts: options and constraints together. See `test_row_options`, too."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.proposers.batch import DraftBatch
from engine_adapter.vllm_engine.worker.drafting.draft_noise import DraftNoise
from engine_adapter.vllm_engine.worker.drafting.draft_sampling import RowSampler
from engine_adapter.vllm_engine.worker.drafting.row_limits import RowLimits
from engine_adapter.vllm_engine.worker.drafting.row_options import RowOptions
from tests.engine_adapter.vllm_engine.support.exact import ALPHA, Sampling, distribution, p_value
from tests.engine_adapter.vllm_engine.support.v2_states import rows_of, sampler_of

pytestmark = pytest.mark.needs_vllm

V = 12
TOKENS = [([0, 6], [1, 2, 2]), ([6, 7], [3]), ([8], [4, 5])]
"""The prompts and the outputs of the three requests."""
NO_ONE = [None, None, None]
PLAIN: list[Mapping[str, Any]] = [{}, {}, {}]
PENALTIES: list[Mapping[str, Any]] = [{"presence_penalty": 1.0, "logit_bias": {3: 1.0}}, {}, {}]


def sampler(options: Sequence[Mapping[str, Any]] = PLAIN) -> Any:
    return sampler_of(V, [(*TOKENS[i], each) for i, each in enumerate(options)])


def limits(
    options: Sequence[Mapping[str, Any]],
    rows: list[int],
    constraints: Any = NO_ONE,
    samples: bool = True,
) -> RowLimits:
    made, own = sampler(options), [constraints[row] for row in rows]
    lengths = np.array([sum(map(len, TOKENS[row])) for row in rows])
    return RowLimits(RowOptions(made, rows_of(made, rows), lengths, samples=samples), own)


def test_the_given_logits_do_not_change() -> None:
    logits = torch.randn(3, V)
    before = logits.clone()
    limited, _ = limits(PENALTIES, [0, 1, 2], [AfterItself(1)] * 3).apply(logits, np.arange(3), 0)
    assert not torch.equal(limited[0], logits[0])
    assert torch.equal(logits, before)


def test_requests_without_options_or_constraints_have_no_limits() -> None:
    assert not limits(PLAIN, [0, 1, 2])
    assert limits(PLAIN, [0, 1, 2], [None, AfterItself(1), None])
    assert limits(PENALTIES, [0, 1, 2])
    assert not limits(PENALTIES, [1, 2])
    min_p = [{"temperature": 1.0, "min_p": 0.4}, {}, {}]
    assert limits(min_p, [0, 1, 2])
    assert not limits(min_p, [0, 1, 2], samples=False)


def test_min_tokens_forbids_a_stop_only_at_drafts_before_it_is_reached() -> None:
    made = limits([{"min_tokens": 5, "stop_token_ids": [9]}, {}, {}], [1, 0])
    every, logits = np.arange(2), torch.zeros(2, V)
    forbidden = []
    for depth in range(4):
        limited, _ = made.apply(logits, every, depth)
        forbidden.append(limited.isneginf().nonzero().tolist())
        made.record(every, torch.tensor([1, 1]))
    # Three tokens of five were there before.
    assert forbidden == [[[1, 9]], [[1, 9]], [], []]


def test_a_row_for_which_nothing_is_left_keeps_its_own_logits() -> None:
    """Otherwise its distribution would be no distribution, which is a fault of the proposer."""
    options = [{"allowed_token_ids": [7, 8]}, {}, {"allowed_token_ids": [3]}]
    logits = torch.randn(3, V)
    made, _ = limits(options, [0, 1, 2], [AfterItself(0), None, None]).apply(
        logits, np.arange(3), 0
    )
    assert torch.equal(made[:2], logits[:2])
    assert made[2].argmax() == 3


def test_a_constraint_and_an_option_of_a_row_both_hold() -> None:
    options = [{"logit_bias": {2: -100.0}}, {"logit_bias": {5: 100.0}}, {}]
    made = limits(options, [0, 1, 2], [AfterItself(0), AfterItself(3), AfterItself(5)])
    logits = torch.arange(V, dtype=torch.float32).expand(3, V)
    assert made.apply(logits, np.arange(3), 0)[0].argmax(-1).tolist() == [1, 5, 7]
    made.record(np.arange(3), torch.tensor([1, 5, 7]))
    assert made.apply(logits, np.arange(3), 1)[0].argmax(-1).tolist() == [3, 7, 9]


# -- constraints -------------------------------------------------------------------------------


class AfterItself:
    """A constraint over `V` tokens: the next token is one larger than the last one, or two."""

    def __init__(self, last: int) -> None:
        self.last = last

    def mask(self) -> bytes | None:
        bits = np.zeros(16, np.uint8)
        bits[[self.last + 1, self.last + 2]] = 1
        return np.packbits(bits, bitorder="little").tobytes()

    def advance(self, token: int) -> None:
        self.last = token


class Free(AfterItself):
    """A constraint that knows nothing of its row."""

    def mask(self) -> bytes | None:
        return None


def test_a_constraint_reads_each_draft_of_its_row() -> None:
    constraints = [AfterItself(0), None, Free(0)]
    made, rows = limits(PLAIN, [0, 1, 2], constraints), np.arange(3)
    logits = torch.arange(V, dtype=torch.float32).expand(3, V)
    drafts = []
    for depth in range(3):
        limited, _ = made.apply(logits, rows, depth)
        drafts.append(limited.argmax(-1).tolist())
        made.record(rows, limited.argmax(-1))
    assert drafts == [[2, 11, 11], [4, 11, 11], [6, 11, 11]]


def test_sampled_drafts_come_from_their_stated_distribution_under_limits() -> None:
    """Verification is exact only with the distribution that was really sampled from."""
    torch.manual_seed(4)
    count = 40_000
    raw = np.random.default_rng(5).normal(0, 1.5, V)
    allowed = [[2, 3, 7], [3, 4], [4, 5, 6]]
    options = [{"temperature": 0.8, "min_p": 0.05, "allowed_token_ids": row} for row in allowed]
    made = limits(options, [0, 1, 2], [AfterItself(1), AfterItself(2), AfterItself(3)])
    temperature = np.full(3, 0.8, np.float32)
    rows = RowSampler(
        DraftNoise(sampler()),
        temperature,
        np.full(3, V, np.int32),
        np.ones(3, np.float32),
        [None] * 3,
        np.arange(3),
        made,
    )
    logits = torch.from_numpy(raw).float().expand(count, V)
    for i in range(3):
        # Many draws at one depth: the constraint reads none of them.
        one = rows.select(np.array([i]))
        assert one.limits is not None
        one.limits.record = lambda rows, tokens: None  # type: ignore[method-assign]
        drawn, stated = one.draw(logits, np.zeros(count, np.intp), 0)
        left = {i + 2, i + 3} & set(allowed[i])
        exact = distribution(
            np.where([token in left for token in range(V)], raw, -1e9),
            Sampling(temperature=0.8, min_p=0.05),
        )
        assert stated is not None
        assert stated[0].numpy() == pytest.approx(exact, abs=1e-6)
        seen = np.bincount(drawn, minlength=V)
        assert p_value(seen, exact) > ALPHA
        assert p_value(seen, distribution(raw, Sampling(temperature=0.8))) < ALPHA


def test_rows_with_limits_draw_their_likeliest_allowed_token() -> None:
    made = limits(PLAIN, [0, 1, 2], [AfterItself(4), None, None])
    zeros = np.zeros(3, np.float32)
    rows = RowSampler(
        DraftNoise(sampler()),
        zeros,
        np.full(3, V, np.int32),
        np.ones(3, np.float32),
        [None] * 3,
        np.arange(3),
        made,
    )
    batch = DraftBatch(
        rows=np.arange(3),
        request_ids=["a", "b", "c"],
        num_tokens=np.full(3, 9),
        num_prompt_tokens=np.ones(3, np.int64),
        num_computed=np.full(3, 8),
        k=np.full(3, 2),
        token_ids=np.zeros((3, 16), np.int32),
        sampling=rows,
    )
    logits = torch.arange(V, dtype=torch.float32).expand(3, V)
    tokens, probabilities = batch.draw(logits, 0)
    assert tokens.tolist() == [6, 11, 11]
    assert probabilities is None
    assert not rows.samples
    assert batch.draw(logits, 1)[0].tolist() == [8, 11, 11]


def test_limits_of_chosen_rows_begin_again() -> None:
    made = limits(PLAIN, [0, 1, 2], [AfterItself(0), AfterItself(1), AfterItself(2)])
    chosen = made.select(np.array([2, 0]))
    logits = torch.arange(V, dtype=torch.float32).expand(2, V)
    assert chosen.apply(logits, np.arange(2), 0)[0].argmax(-1).tolist() == [4, 2]
