"""Targets with recurrent layers: exact texts, however much of a draft is accepted.

Small random models in float32. The reference is stock vLLM, or transformers where stock vLLM makes
mistakes. vLLM's kernels of gated delta networks need bfloat16 on a CPU: the engine has PyTorch's.

Rows with several proposers and prompts in chunks share the batches.
"""

import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import PLAIN
from tests.engine_adapter.vllm_engine.conftest import COMMON
from tests.engine_adapter.vllm_engine.support.committing import (
    commit_a_token_too_far,
    commit_what_was_accepted,
)
from tests.engine_adapter.vllm_engine.support.hybrid_models import HYBRIDS, MISTAKEN, random_hybrid
from tests.engine_adapter.vllm_engine.support.live import TIE, Prompt, Stock, start_stock
from tests.engine_adapter.vllm_engine.support.plain_gated_delta import compute_in_any_dtype
from tests.engine_adapter.vllm_engine.support.plain_model import PlainModel
from tests.engine_adapter.vllm_engine.support.recorded import (
    RecordedEngine,
    RecordedRequest,
)
from tests.engine_adapter.vllm_engine.support.reference_case import (
    LENGTH,
    PREDICTION,
    SOME,
    Case,
    proposers_for,
    with_mistakes,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.prove,
    pytest.mark.asyncio(loop_scope="session"),
]

BLOCKS = 60
CAUGHT = 2.0
"""A mistake of a state makes some token this much less likely than the likeliest."""


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=[*HYBRIDS, *MISTAKEN])
async def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Case]:
    folder = tmp_path_factory.mktemp("hybrid")
    target = random_hybrid(folder / "target", request.param)
    options = COMMON | {"max_num_batched_tokens": 200, "max_num_seqs": 8}
    specs = parse_specs(proposers_for(target, folder))
    config = EngineConfig(target, "hybrid", specs, 5, options | {"num_gpu_blocks_override": BLOCKS})
    if request.param in MISTAKEN:
        engine = RecordedEngine(config, compute_in_any_dtype)
        yield Case(engine, PlainModel(target))
        engine.stop()
        return
    engine = RecordedEngine(config)
    llm = start_stock(target, **COMMON, enable_prefix_caching=False)
    yield Case(engine, Stock(llm))
    llm.shutdown()
    engine.stop()


async def test_texts_are_exact_under_every_proposer(case: Case, prompts: list[Prompt]) -> None:
    rng = random.Random(1)
    some = [prompts[i] for i in SOME]
    texts = await case.stock.greedy(some, LENGTH)
    for _ in range(3):
        got = case.engine.run(case.requests(some, texts, rng, pinned=True))
        assert await case.largest_gap(some, got) < TIE


async def test_texts_are_exact_under_switches(case: Case, prompts: list[Prompt]) -> None:
    rng = random.Random(2)
    some = [prompts[i] for i in SOME]
    texts = await case.stock.greedy(some, LENGTH)
    switches = case.random_switches(rng)
    got = case.engine.run(case.requests(some, texts, rng, pinned=False), switches)
    assert await case.largest_gap(some, got) < TIE
    assert {name for drafts in got.drafts for name, _ in drafts.values()} > {"draft", "eagle"}


async def test_texts_are_exact_after_preemption(case: Case, prompts: list[Prompt]) -> None:
    """With fewer and fewer blocks, until a request has to give its own away."""
    rng = random.Random(5)
    some = [prompts[i] for i in SOME[:4]]
    texts = await case.stock.greedy(some, LENGTH)
    requests = case.requests(some, texts, rng, pinned=True)
    preemptions, blocks = 0, BLOCKS - 1
    while not preemptions:
        blocks -= 2
        got = case.engine.run(requests, blocks=blocks)
        assert await case.largest_gap(some, got) < TIE
        preemptions = got.preemptions


async def test_a_prompt_as_long_as_a_verified_row_changes_no_text(
    case: Case, prompts: list[Prompt]
) -> None:
    """It is read beside rows that have accepted drafts in the step before, and now have none."""
    rng = random.Random(4)
    some = [prompts[i] for i in SOME[:3]]
    texts = await case.stock.greedy(some, LENGTH)
    long = case.requests(some, texts, rng, pinned=False)
    verified = PREDICTION.num_speculative_tokens + 1
    short = [RecordedRequest(some[0][:verified], 1, PLAIN, at=step) for step in range(12, 60)]
    switches = {step: PREDICTION if step % 2 else PLAIN for step in range(200)}
    got = case.engine.run([*long, *short], switches)
    assert await case.largest_gap(some, got) < TIE


async def test_a_state_committed_one_token_too_far_is_caught(
    case: Case, prompts: list[Prompt]
) -> None:
    rng = random.Random(3)
    some = [prompts[i] for i in SOME]
    texts = await case.stock.greedy(some, LENGTH)
    requests = [
        RecordedRequest(prompt, LENGTH, PREDICTION, prediction=with_mistakes(text, rng))
        for prompt, text in zip(some, texts, strict=True)
    ]
    assert await case.largest_gap(some, case.engine.run(requests)) < TIE
    case.engine.call(commit_a_token_too_far)
    try:
        got = case.engine.run(requests)
    finally:
        case.engine.call(commit_what_was_accepted)
    assert await case.largest_gap(some, got) > CAUGHT
