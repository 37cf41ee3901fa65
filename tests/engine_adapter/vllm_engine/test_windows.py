"""Targets with sliding windows: exact texts, and drafts as without switches.

vLLM frees blocks behind the windows, and has several KV cache groups, each with its block table.
The demo's target gets windows that are shorter than most prompts; the target as its own draft
proves the draft KV, since every one of its drafts can be accepted. Other architectures with windows
are in `architectures/catalog.py`.
"""

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.cases import proved_beyond
from tests.engine_adapter.vllm_engine.conftest import CHOICES, COMMON, PROPOSERS, TARGET
from tests.engine_adapter.vllm_engine.support.draft_comparisons import check_fresh_drafts
from tests.engine_adapter.vllm_engine.support.live import Prompt, Stock, start_stock
from tests.engine_adapter.vllm_engine.support.overlooking import overlook_a_block, overlook_nothing
from tests.engine_adapter.vllm_engine.support.recorded import (
    RecordedEngine,
    RecordedRequest,
    RecordedRun,
)
from tests.engine_adapter.vllm_engine.support.window_models import (
    FULL,
    SLIDING,
    WINDOW,
    windowed_target,
)

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

METHODS = [SpecMethod(name, k) for name, k in CHOICES.items()]
SELF, NGRAM = SpecMethod("self", 5), SpecMethod("ngram", 4)
BLOCK = 32

Case = tuple[RecordedEngine, Stock]


def start(target: str, proposers: list[dict[str, Any]], **arguments: Any) -> RecordedEngine:
    """An engine with chunked prompts and little KV."""
    options = {"max_num_batched_tokens": 200, "max_num_seqs": 16, "block_size": BLOCK}
    given = COMMON | options | arguments
    return RecordedEngine(EngineConfig(target, "demo", parse_specs(proposers), None, given))


def with_itself(target: str) -> list[dict[str, Any]]:
    """Every proposer; `self` is the given target."""
    return [p | {"model": target} if p["name"] == "self" else p for p in PROPOSERS]


def own_drafts(got: RecordedRun, prompts: list[Prompt]) -> tuple[int, int]:
    """How many tokens `self` drafted within the texts, and how many of them are the texts'."""
    counts = [got.accepted(i, "self", prompt) for i, prompt in enumerate(prompts)]
    return sum(drafted for drafted, _ in counts), sum(accepted for _, accepted in counts)


async def run_switching(
    case: Case, prompts: list[Prompt], methods: list[SpecMethod], length: int = 32
) -> RecordedRun:
    """Random switches, every three steps; asserts exact texts and that `self` is never wrong."""
    engine, stock = case
    rng = random.Random(len(prompts))
    switches = {step: rng.choice([SELF, *methods]) for step in range(0, 600, 3)}
    requests = [RecordedRequest(prompt, length, PLAIN, at=i) for i, prompt in enumerate(prompts)]
    engine.reset_prefix_cache()
    got = engine.run(requests, switches)
    await stock.greedy(prompts, length)
    for prompt, output in zip(prompts, got.outputs, strict=True):
        await stock.check(prompt, output)
    drafted, accepted = own_drafts(got, prompts)
    assert accepted == drafted > 50
    assert got.catchup["self"] > 5 * WINDOW
    return got


# -- the demo's target with windows ----------------------------------------------------------

KINDS: dict[str, dict[str, Any]] = {
    "some layers": {"kinds": [SLIDING, SLIDING, FULL] * 2},
    "all layers": {"kinds": None},
    "one group": {"kinds": [SLIDING, SLIDING, FULL] * 2, "disable_hybrid_kv_cache_manager": True},
}
"""Which layers have a window, and arguments of the engine."""


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="session",
    params=[
        pytest.param("some layers"),
        pytest.param("all layers", marks=pytest.mark.prove),
        pytest.param("one group", marks=pytest.mark.prove),
    ],
)
async def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Case]:
    """An engine with every proposer, and stock vLLM."""
    arguments = dict(KINDS[request.param])
    folder = tmp_path_factory.mktemp("windows") / "target"
    target = windowed_target(folder, arguments.pop("kinds"))
    # Enough for one request of the longest kind in every group.
    blocks = 40 if request.param == "one group" else 320
    arguments |= {"num_gpu_blocks_override": blocks, "max_model_len": 768}
    engine = start(target, with_itself(target), **arguments)
    llm = start_stock(target, **COMMON)
    yield engine, Stock(llm)
    llm.shutdown()
    engine.stop()


async def test_switches_change_no_text_and_no_draft(case: Case, prompts: list[Prompt]) -> None:
    got = await run_switching(case, [*prompts[:12], *prompts[16:18]], METHODS, length=64)
    assert got.preemptions > 0


async def test_a_prefix_that_was_cached_while_idle_is_caught_up(
    case: Case, prompts: list[Prompt]
) -> None:
    """The target's layers with a window find only the end of the prefix, all others all of it."""
    engine, stock = case
    prompt = prompts[17]
    engine.reset_prefix_cache()
    engine.run([RecordedRequest(prompt, 1, PLAIN)])
    got = engine.run([RecordedRequest(prompt, 24, SELF)])
    assert got.cached[0] > len(prompt) - 2 * BLOCK
    assert got.catchup["self"] >= got.cached[0]
    assert got.outputs == await stock.greedy([prompt], 24)
    drafted, accepted = own_drafts(got, [prompt])
    assert accepted == drafted > 15


async def test_layers_with_a_window_free_blocks_and_those_of_drafts_keep_theirs(
    case: Case, prompts: list[Prompt]
) -> None:
    engine, _ = case
    groups = engine.kv_cache_groups()
    if len(groups) == 1:
        pytest.skip("the engine has one group")
    of_self = {spec for spec, names in groups if any("draft:self" in name for name in names)}
    assert of_self == {"FullAttentionSpec"}
    assert "SlidingWindowSpec" in {spec for spec, _ in groups}
    got = engine.run([RecordedRequest(prompts[16], 8, SELF)])
    assert got.freed >= 2 * (len(prompts[16]) - WINDOW) // BLOCK


@pytest.mark.parametrize("name", proved_beyond(["draft"], ["eagle", "eagle3", "draft"]))
async def test_drafts_after_a_switch_are_those_of_a_run_without(
    case: Case, prompts: list[Prompt], name: str
) -> None:
    """They are long idle: all that the window needs was computed by the target alone."""
    engine, _ = case
    some, method = [prompts[16], prompts[9], prompts[10]], SpecMethod(name, 4)
    engine.reset_prefix_cache()
    switches = {0: PLAIN, 15: method, 20: NGRAM, 24: method}
    got = engine.run([RecordedRequest(prompt, 60, PLAIN) for prompt in some], switches)
    assert got.catchup[name] > len(prompts[16])
    check_fresh_drafts(engine, some, got, method, positions=5)


async def test_a_rule_that_overlooks_a_block_is_caught(case: Case, prompts: list[Prompt]) -> None:
    """It costs accepted drafts, never a text."""
    engine, stock = case
    some = sorted(prompts, key=len)[:4]
    texts = await stock.greedy(some, 24)

    def drafts() -> tuple[int, int]:
        engine.reset_prefix_cache()
        requests = [RecordedRequest(prompt, 24, PLAIN) for prompt in some]
        got = engine.run(requests, {0: PLAIN, 6: SELF})
        assert got.outputs == texts
        return own_drafts(got, some)

    drafted, accepted = drafts()
    assert accepted == drafted > 20
    engine.call(overlook_a_block)
    try:
        drafted, accepted = drafts()
    finally:
        engine.call(overlook_nothing)
    assert accepted < drafted


# -- a draft model with windows --------------------------------------------------------------


@pytest.mark.prove
async def test_a_draft_with_windows_keeps_all_its_positions_under_a_target_without(
    prompts: list[Prompt], tmp_path: Path, stock: Stock
) -> None:
    """It is another model than the target, so its drafts are compared with fresh requests'."""
    folder = windowed_target(tmp_path / "draft", [SLIDING, SLIDING, FULL] * 2)
    proposer = {
        "name": "window",
        "method": "draft_model",
        "model": folder,
        "num_speculative_tokens": 4,
    }
    engine = start(TARGET, [*PROPOSERS[:1], proposer], num_gpu_blocks_override=60)
    try:
        some, method = [prompts[16], prompts[9], prompts[10]], SpecMethod("window", 4)
        # Even if all drafts are accepted, the five steps from 15 on have drafts.
        switches = {0: PLAIN, 15: method, 20: NGRAM, 24: method}
        got = engine.run([RecordedRequest(prompt, 60, PLAIN) for prompt in some], switches)
        check_fresh_drafts(engine, some, got, method, positions=5)
    finally:
        engine.stop()
    for prompt, output in zip(some, got.outputs, strict=True):
        await stock.check(prompt, output)
