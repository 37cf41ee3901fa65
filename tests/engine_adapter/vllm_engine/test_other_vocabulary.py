"""Draft models with another tokenizer on a real engine.

A copy of the demo's draft model with other token ids computes the same, so it must draft the same
tokens, and a copy of the target is nearly always accepted. Another copy lacks a third of the
tokens.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from demo import model_path
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import SpecMethod
from tests.engine_adapter.vllm_engine.conftest import COMMON, TARGET
from tests.engine_adapter.vllm_engine.support.draft_comparisons import never_switched, same_drafts
from tests.engine_adapter.vllm_engine.support.live import Prompt, Stock
from tests.engine_adapter.vllm_engine.support.other_vocabulary import with_other_ids
from tests.engine_adapter.vllm_engine.support.recorded import (
    RecordedEngine,
    RecordedRequest,
    RecordedRun,
)

pytestmark = [pytest.mark.engine, pytest.mark.prove]

K, LENGTH = 4, 60
DRAFT = str(model_path("draft"))
FIRST_MERGED = 262
"""Tokens below it are special ones and single bytes."""
MISSING = frozenset(range(FIRST_MERGED, 2048, 3))


def draft(name: str, model: str, **options: Any) -> dict[str, Any]:
    return {
        "name": name,
        "method": "draft_model",
        "model": model,
        "num_speculative_tokens": K,
        **options,
    }


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedEngine]:
    """An engine with the draft model and the target as drafts, and their copies."""
    root, mapped = tmp_path_factory.mktemp("drafts"), {"use_heterogeneous_vocab": True}
    proposers = [
        draft("draft", DRAFT),
        draft("self", TARGET),
        draft("permuted", with_other_ids(DRAFT, root / "permuted"), **mapped),
        draft("permuted-self", with_other_ids(TARGET, root / "self", seed=1), **mapped),
        draft("partial", with_other_ids(DRAFT, root / "partial", without=MISSING), **mapped),
    ]
    config = EngineConfig(
        TARGET, "demo", parse_specs(proposers), None, COMMON | {"num_gpu_blocks_override": 80}
    )
    started = RecordedEngine(config)
    yield started
    started.stop()


def accepted(run: RecordedRun, prompts: list[Prompt], proposer: str) -> tuple[int, int]:
    """How many drafts were the tokens that followed, and how many there were."""
    count = total = 0
    for i, prompt in enumerate(prompts):
        row = prompt + run.outputs[i]
        for length, drafts in run.of(i, proposer).items():
            following = row[length : length + len(drafts)]
            same = np.array(drafts[: len(following)]) == np.array(following)
            count += int(same.cumprod().sum())
            total += len(following)
    return count, total


@pytest.mark.parametrize(("copy", "original"), [("permuted", "draft"), ("permuted-self", "self")])
def test_a_copy_with_other_ids_drafts_what_the_original_drafts(
    engine: RecordedEngine, prompts: list[Prompt], copy: str, original: str
) -> None:
    some = prompts[:3]
    want = never_switched(engine, some, SpecMethod(original, K), LENGTH)
    got = never_switched(engine, some, SpecMethod(copy, K), LENGTH)
    assert got.outputs == want.outputs
    for i in range(len(some)):
        assert got.of(i, copy) == want.of(i, original)
    assert accepted(got, some, copy)[1] > LENGTH


def test_a_copy_of_the_target_is_accepted(engine: RecordedEngine, prompts: list[Prompt]) -> None:
    run = never_switched(engine, prompts[:3], SpecMethod("permuted-self", K), LENGTH)
    count, total = accepted(run, prompts[:3], "permuted-self")
    assert count >= 0.99 * total


@pytest.mark.parametrize("copy", ["permuted-self", "partial"])
def test_switches_chunks_and_prefix_hits_do_not_change_drafts(
    engine: RecordedEngine, prompts: list[Prompt], copy: str
) -> None:
    """All rows at once: prompts in chunks, beginnings that are shared, and a method per step."""
    some = prompts[16:22]
    want = never_switched(engine, some, SpecMethod(copy, K), LENGTH)
    engine.reset_prefix_cache()
    cycle = [SpecMethod(copy, K), SpecMethod("draft", K), SpecMethod(), SpecMethod(copy, K)]
    switches = {step: cycle[step // 5 % len(cycle)] for step in range(0, 200, 5)}
    requests = [RecordedRequest(p, LENGTH, cycle[0], at=i) for i, p in enumerate(some)]
    got = engine.run(requests, switches)
    assert same_drafts(got, want, copy) > 20
    assert got.catchup.get(copy, 0) > 100


def test_missing_tokens_are_never_drafted(engine: RecordedEngine, prompts: list[Prompt]) -> None:
    some = prompts[:6]
    run = never_switched(engine, some, SpecMethod("partial", K), LENGTH)
    drafted = {t for i in range(len(some)) for d in run.of(i, "partial").values() for t in d}
    assert len(drafted) > 50
    assert not drafted & MISSING
    emitted = {token for output in run.outputs for token in output}
    assert emitted & MISSING, "the target does not avoid them"
    count, total = accepted(run, some, "partial")
    assert total > 6 * LENGTH / 2
    assert count > 50


@pytest.mark.asyncio(loop_scope="session")
async def test_greedy_text_is_stock_vllms(
    engine: RecordedEngine, stock: Stock, prompts: list[Prompt]
) -> None:
    for copy in ("permuted", "partial"):
        requests = [RecordedRequest(p, LENGTH, SpecMethod(copy, K)) for p in prompts]
        run = engine.run(requests)
        for prompt, tokens in zip(prompts, run.outputs, strict=True):
            await stock.check(prompt, tokens)


def test_control_a_map_that_is_off_by_one_is_noticed(
    engine: RecordedEngine, prompts: list[Prompt]
) -> None:
    some = prompts[:2]
    engine.call(shift_map)
    try:
        run = never_switched(engine, some, SpecMethod("permuted-self", K), LENGTH)
    finally:
        engine.call(unshift_map)
    count, total = accepted(run, some, "permuted-self")
    assert count < total // 10
    want = never_switched(engine, some, SpecMethod("self", K), LENGTH)
    assert run.outputs == want.outputs, "the text does not depend on the drafts"


def shift_map() -> None:
    _roll(1)


def unshift_map() -> None:
    _roll(-1)


def _roll(by: int) -> None:
    """Shifts the map of the copy of the target, in the engine's process."""
    from tests.engine_adapter.vllm_engine.support import recorded

    model = recorded.running_runner().drafter.host.draft_models["permuted-self"]
    model._vocabulary._columns = model._vocabulary._columns.roll(by)
