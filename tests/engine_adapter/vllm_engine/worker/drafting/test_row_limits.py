"""What requests allow at drafts: the logits of a draft are those that verification will see."""

from typing import Any

import numpy as np
import pytest
import torch
from engine_adapter.vllm_engine.worker.verification.layout import VerifyLayout
from engine_adapter.vllm_engine.worker.verification.verifier import _outputs_before
from tests.engine_adapter.vllm_engine.worker.verification.test_logits_processors import processors

from engine_adapter.proposers.batch import DraftBatch
from engine_adapter.vllm_engine.worker.drafting.draft_noise import GeneratorNoise
from engine_adapter.vllm_engine.worker.drafting.draft_sampling import RowSampler
from engine_adapter.vllm_engine.worker.drafting.row_limits import RowLimits
from engine_adapter.vllm_engine.worker.drafting.row_options import MetadataOptions
from engine_adapter.vllm_engine.worker.verification import logits_processors
from tests.engine_adapter.vllm_engine.support.exact import ALPHA, Sampling, distribution, p_value

pytestmark = pytest.mark.needs_vllm

CPU = torch.device("cpu")
V = 12
OUTPUTS = [[1, 2, 2], [3], [4, 5]]
"""The output of the three rows of the batch."""
NO_ONE = [None, None, None]

OPTIONS: dict[str, dict[str, Any]] = {
    "bias": {"rows": [{"logit_bias": {3: 5.0, 7: -100.0}}, {}, {"logit_bias": {1: 2.0}}]},
    "min_tokens": {"rows": [{"min_tokens": 5, "stop_token_ids": [9]}, {}, {}]},
    "min_p": {"rows": [{"min_p": 0.4}, {"min_p": 0.1}, {}]},
    "penalties": {"penalties": [(1.5, 0.4, 0.2), (1.0, 0.0, 0.0), (0.7, -0.3, 1.0)]},
    "allowed": {"allowed": [[1, 2, 3, 8], None, [0, 5]]},
    "bad_words": {"bad_words": {0: [[2], [1, 4]], 2: [[5, 6]]}},
    "everything": {
        "rows": [
            {"logit_bias": {3: 2.0}, "min_p": 0.1},
            {"min_tokens": 3, "stop_token_ids": [9]},
            {},
        ],
        "penalties": [(1.3, 0.1, 0.0), (1.0, 0.5, 0.0), (1.0, 0.0, 0.5)],
        "allowed": [None, [*range(2, 12)], None],
        "bad_words": {1: [[3, 3]]},
    },
}


def metadata(
    rows: list[dict[str, Any]] | None = None,
    penalties: list[tuple[float, float, float]] | None = None,
    allowed: list[list[int] | None] | None = None,
    bad_words: dict[int, list[list[int]]] | None = None,
) -> Any:
    """vLLM's `SamplingMetadata`; a row's penalties are repetition, frequency and presence."""
    from vllm.v1.sample.metadata import SamplingMetadata

    mask = None
    if allowed is not None:
        mask = torch.zeros(3, V, dtype=torch.bool)
        for row, tokens in enumerate(allowed):
            if tokens is not None:
                mask[row] = True
                mask[row, tokens] = False
    repetition, frequency, presence = torch.tensor(penalties or [(1.0, 0.0, 0.0)] * 3).unbind(1)
    return SamplingMetadata(
        temperature=None,
        all_greedy=True,
        all_random=False,
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=None,
        no_penalties=penalties is None,
        prompt_token_ids=torch.tensor([[0, 6], [6, 7], [8, V]]) if penalties else None,
        frequency_penalties=frequency,
        presence_penalties=presence,
        repetition_penalties=repetition,
        output_token_ids=OUTPUTS,
        allowed_token_ids_mask=mask,
        bad_words_token_ids=bad_words or {},
        logitsprocs=processors(rows or [{}, {}, {}], OUTPUTS),
    )


def sampler() -> Any:
    from vllm.v1.sample.sampler import Sampler

    return Sampler()


def limits(
    given: Any, rows: list[int], constraints: Any = NO_ONE, samples: bool = True
) -> RowLimits:
    own = [constraints[row] for row in rows]
    options = MetadataOptions(sampler(), given, np.array(rows), 3, samples=samples)
    return RowLimits(options, own)


def verified(given: Any, drafts: list[list[int]], logits: torch.Tensor) -> torch.Tensor:
    """The logits [T + B, V] that verification takes the tokens from, at every position."""
    layout = VerifyLayout([len(row) for row in drafts], CPU)
    outputs = _outputs_before(given.output_token_ids, layout, drafts)
    plain = logits_processors.expand_metadata(given, layout, outputs, {})
    result: torch.Tensor = sampler().apply_logits_processors(logits.clone(), plain, False)
    for processor in plain.logitsprocs.argmax_invariant:
        result = processor.apply(result)
    return result


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0], [1]], ids=str)
def test_a_drafts_logits_are_those_of_its_verification(
    options: dict[str, Any], rows: list[int]
) -> None:
    given, depths = metadata(**options), 4
    logits = torch.randn(3, depths, V, generator=torch.Generator().manual_seed(2)) * 3
    made = limits(given, rows)
    assert made
    drafts: list[list[int]] = [[], [], []]
    drafted = []
    for depth in range(depths):
        limited, after = made.apply(logits[rows, depth], np.arange(len(rows)), depth)
        for processor in after:
            limited = processor.apply(limited)
        drafted.append(limited)
        tokens = limited.argmax(-1)
        made.record(np.arange(len(rows)), tokens)
        for row, token in zip(rows, tokens.tolist(), strict=True):
            drafts[row].append(token)
    for i, row in enumerate(rows):
        own = [drafts[r][:-1] if r == row else [] for r in range(3)]
        at = torch.cat([logits[r, : len(own[r]) + 1] for r in range(3)])
        seen = verified(given, own, at)[row : row + depths]
        for depth in range(depths):
            assert torch.equal(drafted[depth][i], seen[depth])


def test_only_some_rows_may_be_drafted_at_a_depth() -> None:
    given = metadata(**OPTIONS["penalties"])
    made, all_rows = limits(given, [2, 0, 1]), np.arange(3)
    logits = torch.randn(3, V)
    made.record(all_rows, torch.tensor([4, 1, 3]))
    whole, _ = made.apply(logits, all_rows, 1)
    part, _ = made.apply(logits[[1, 0]], np.array([1, 0]), 1)
    assert torch.equal(part, whole[[1, 0]])


def test_the_given_logits_do_not_change() -> None:
    logits = torch.randn(3, V)
    before = logits.clone()
    limits(metadata(**OPTIONS["everything"]), [0, 1, 2]).apply(logits, np.arange(3), 0)
    assert torch.equal(logits, before)


def test_requests_without_options_have_no_limits() -> None:
    assert not limits(metadata(), [0, 1, 2])
    for options in OPTIONS.values():
        assert limits(metadata(**options), [0, 1, 2])
    assert not limits(metadata(**OPTIONS["min_p"]), [0, 1, 2], samples=False)


def test_a_row_for_which_nothing_is_left_keeps_its_own_logits() -> None:
    """Otherwise its distribution would be no distribution, which is a fault of the proposer."""
    given = metadata(allowed=[[], None, [3]])
    logits = torch.randn(3, V)
    made, _ = limits(given, [0, 1, 2]).apply(logits, np.arange(3), 0)
    assert torch.equal(made[:2], logits[:2])
    assert made[2].argmax() == 3


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
    made, rows = limits(metadata(), [0, 1, 2], constraints), np.arange(3)
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
    given = metadata(rows=[{"min_p": 0.05}] * 3, allowed=[*allowed])
    made = limits(given, [0, 1, 2], [AfterItself(1), AfterItself(2), AfterItself(3)])
    temperature = np.full(3, 0.8, np.float32)
    rows = RowSampler(
        GeneratorNoise(sampler()),
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
    made = limits(metadata(), [0, 1, 2], [AfterItself(4), None, None])
    zeros = np.zeros(3, np.float32)
    rows = RowSampler(
        GeneratorNoise(sampler()),
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
    made = limits(metadata(), [0, 1, 2], [AfterItself(0), AfterItself(1), AfterItself(2)])
    chosen = made.select(np.array([2, 0]))
    logits = torch.arange(V, dtype=torch.float32).expand(2, V)
    assert chosen.apply(logits, np.arange(2), 0)[0].argmax(-1).tolist() == [4, 2]
