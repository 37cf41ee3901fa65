"""Targets with recurrent layers: exact texts, however much of a draft is accepted.

Small random models in float32. The reference is stock vLLM, or transformers where stock vLLM makes
mistakes. vLLM's kernels of gated delta networks need bfloat16 on a CPU: the engine has PyTorch's.

The request's predicted output is the target's own text with mistakes, so drafts are accepted in
part, at every length, and each is followed by steps without drafts. Rows with other proposers and
prompts in chunks share the batches.
"""

import json
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from demo import model_path
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.engine_adapter.proposers.eagle_heads import eagle
from tests.engine_adapter.proposers.heads import medusa
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
    RecordedRun,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.prove,
    pytest.mark.asyncio(loop_scope="session"),
]

LENGTH = 60
BLOCKS = 60
SOME = (0, 3, 8, 9, 10, 12, 16, 17, 20, 16)
"""Which prompts; two are equal, and most are read in several chunks."""
CAUGHT = 2.0
"""A mistake of a state makes some token this much less likely than the likeliest."""
PREDICTION = SpecMethod("prediction", 5)
METHODS = [
    *(SpecMethod("prediction", k) for k in (1, 3, 5)),
    SpecMethod("ngram", 5),
    SpecMethod("suffix", 5),
    SpecMethod("draft", 4),
    SpecMethod("medusa", 4),
    SpecMethod("eagle", 3),
    PLAIN,
]


@dataclass(frozen=True)
class Case:
    """An engine with every kind of proposer, and a reference."""

    engine: RecordedEngine
    stock: Stock | PlainModel


def proposers_for(target: str, folder: Path) -> list[dict[str, Any]]:
    """Lookups, a draft model of attention, and random heads."""
    config = json.loads((Path(target) / "config.json").read_text())
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    layer = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5}
    for name in ("hidden_size", "vocab_size", "intermediate_size", "max_position_embeddings"):
        layer[name] = config[name]
    layer |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    return [
        {"name": "ngram"},
        {"name": "suffix", "num_speculative_tokens": 5},
        {
            "name": "draft",
            "method": "draft_model",
            "model": str(model_path("draft")),
            "num_speculative_tokens": 4,
        },
        {
            "name": "medusa",
            "model": medusa(hidden=hidden, vocabulary=vocabulary).write(folder / "medusa"),
            "num_speculative_tokens": 4,
        },
        {"name": "eagle", "model": eagle(layer).write(folder / "eagle")},
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=[*HYBRIDS, *MISTAKEN])
async def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Case]:
    folder = tmp_path_factory.mktemp("hybrid")
    target = random_hybrid(folder / "target", request.param)
    options = COMMON | {"max_num_batched_tokens": 200, "max_num_seqs": 8}
    specs = parse_specs(
        [*proposers_for(target, folder), {"name": "prediction", "num_speculative_tokens": 5}]
    )
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


def with_mistakes(text: Sequence[int], rng: random.Random, share: float = 0.15) -> Prompt:
    """The text with other tokens at a share of its positions."""
    return tuple(rng.randrange(3, 2000) if rng.random() < share else token for token in text)


def requests_of(
    prompts: Sequence[Prompt], texts: Sequence[Prompt], rng: random.Random, *, pinned: bool
) -> list[RecordedRequest]:
    """A request for each prompt; `pinned` ones have a random method."""
    return [
        RecordedRequest(
            prompt,
            LENGTH,
            rng.choice(METHODS) if pinned else PLAIN,
            at=rng.randrange(12),
            prediction=with_mistakes(text, rng),
        )
        for prompt, text in zip(prompts, texts, strict=True)
    ]


async def largest_gap(case: Case, prompts: Sequence[Prompt], got: RecordedRun) -> float:
    """The most that a token of the prompts' texts is less likely than the likeliest, in logits.

    Requests behind those of the prompts do not count.
    """
    return max(
        [
            await case.stock.gap(prompt, output)
            for prompt, output in zip(prompts, got.outputs, strict=False)
        ]
    )


async def test_texts_are_exact_under_every_proposer(case: Case, prompts: list[Prompt]) -> None:
    rng = random.Random(1)
    some = [prompts[i] for i in SOME]
    texts = await case.stock.greedy(some, LENGTH)
    for _ in range(3):
        got = case.engine.run(requests_of(some, texts, rng, pinned=True))
        assert await largest_gap(case, some, got) < TIE


async def test_texts_are_exact_under_switches(case: Case, prompts: list[Prompt]) -> None:
    rng = random.Random(2)
    some = [prompts[i] for i in SOME]
    texts = await case.stock.greedy(some, LENGTH)
    switches = {step: rng.choice(METHODS) for step in range(0, 600, 2)}
    got = case.engine.run(requests_of(some, texts, rng, pinned=False), switches)
    assert await largest_gap(case, some, got) < TIE
    assert {name for drafts in got.drafts for name, _ in drafts.values()} > {"draft", "eagle"}


async def test_texts_are_exact_after_preemption(case: Case, prompts: list[Prompt]) -> None:
    """With fewer and fewer blocks, until a request has to give its own away."""
    rng = random.Random(5)
    some = [prompts[i] for i in SOME[:4]]
    texts = await case.stock.greedy(some, LENGTH)
    requests = requests_of(some, texts, rng, pinned=True)
    preemptions, blocks = 0, BLOCKS - 1
    while not preemptions:
        blocks -= 2
        got = case.engine.run(requests, blocks=blocks)
        assert await largest_gap(case, some, got) < TIE
        preemptions = got.preemptions


async def test_a_prompt_as_long_as_a_verified_row_changes_no_text(
    case: Case, prompts: list[Prompt]
) -> None:
    """It is read beside rows that have accepted drafts in the step before, and now have none."""
    rng = random.Random(4)
    some = [prompts[i] for i in SOME[:3]]
    texts = await case.stock.greedy(some, LENGTH)
    long = requests_of(some, texts, rng, pinned=False)
    verified = PREDICTION.num_speculative_tokens + 1
    short = [RecordedRequest(some[0][:verified], 1, PLAIN, at=step) for step in range(12, 60)]
    switches = {step: PREDICTION if step % 2 else PLAIN for step in range(200)}
    got = case.engine.run([*long, *short], switches)
    assert await largest_gap(case, some, got) < TIE


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
    assert await largest_gap(case, some, case.engine.run(requests)) < TIE
    case.engine.call(commit_a_token_too_far)
    try:
        got = case.engine.run(requests)
    finally:
        case.engine.call(commit_what_was_accepted)
    assert await largest_gap(case, some, got) > CAUGHT
