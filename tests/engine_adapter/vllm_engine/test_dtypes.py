"""Targets in bfloat16 and quantised targets: texts as stock vLLM's, but for ties.

A sum of 16-bit numbers depends on the shape of its batch, and a step that verifies drafts has
another shape than one that does not. So a text may leave stock vLLM's where the two best tokens are
as good as equal; stock vLLM's own texts do the same when its batch has another size.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from demo import model_path
from engine_adapter.config import EngineConfig
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.types import PLAIN, SpecMethod
from tests.engine_adapter.vllm_engine.conftest import CHOICES, PROPOSERS, TARGET
from tests.engine_adapter.vllm_engine.support.live import Prompt
from tests.engine_adapter.vllm_engine.support.quantized_models import LAYOUTS, write_quantized
from tests.engine_adapter.vllm_engine.support.recorded import RecordedEngine, RecordedRequest
from tests.engine_adapter.vllm_engine.support.stock_texts import StockText, StockTexts

pytestmark = [pytest.mark.engine, pytest.mark.prove]

TIE_16 = 0.1
"""In bfloat16 texts may differ where the two best log probabilities are closer than this."""

LENGTH = 64
ARGUMENTS: dict[str, Any] = {
    "dtype": "bfloat16",
    "max_model_len": 1024,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 512,
}


@dataclass(frozen=True)
class Case:
    """An engine with every proposer, and stock vLLM's texts alone and in one batch."""

    engine: RecordedEngine
    prompts: list[Prompt]
    together: list[StockText]
    alone: list[StockText]


@pytest.fixture(scope="module", params=["bfloat16", *LAYOUTS])
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, prompts: list[Prompt]
) -> Iterator[Case]:
    """The target in one format; `original` is the demo's target as a draft model."""
    target = TARGET
    if request.param in LAYOUTS:
        target = write_quantized(request.param, tmp_path_factory.mktemp("quantized") / "target")
    proposers = [p | {"model": target} if p["name"] == "self" else p for p in PROPOSERS]
    original = {"method": "draft_model", "model": str(model_path("target"))}
    proposers.append({"name": "original", "num_speculative_tokens": 4, **original})
    arguments = ARGUMENTS | {"num_gpu_blocks_override": 100}
    config = EngineConfig(target, "demo", parse_specs(proposers), None, arguments)
    engine, stock = RecordedEngine(config), StockTexts()
    try:
        together = stock.texts(target, prompts, LENGTH, ARGUMENTS)
        alone = stock.texts(target, prompts, LENGTH, ARGUMENTS | {"max_num_seqs": 1})
        yield Case(engine, prompts, together, alone)
    finally:
        stock.stop()
        engine.stop()


def gaps(texts: Sequence[StockText], others: Sequence[tuple[int, ...]]) -> list[float]:
    """For each text that differs, how far stock's two best tokens were apart there."""
    found = [(text, text.differs_at(other)) for text, other in zip(texts, others, strict=True)]
    return [text.gaps[at] for text, at in found if at is not None]


def test_stock_vllms_own_texts_differ_at_ties_only(case: Case) -> None:
    found = gaps(case.together, [text.tokens for text in case.alone])
    assert all(gap < TIE_16 for gap in found), found


@pytest.mark.parametrize("name", [*CHOICES, "original"])
def test_a_proposers_texts_are_stock_vllms_but_for_ties(case: Case, name: str) -> None:
    method = SpecMethod(name, CHOICES.get(name, 4))
    case.engine.reset_prefix_cache()
    got = case.engine.run([RecordedRequest(prompt, LENGTH, method) for prompt in case.prompts])
    found = gaps(case.together, got.outputs)
    assert all(gap < TIE_16 for gap in found), found
    assert len(found) < len(case.prompts) / 2
    if name != "none":
        assert any(got.of(i, name) for i in range(len(case.prompts)))


def test_switches_change_texts_at_ties_only(case: Case) -> None:
    rng = random.Random(3)
    methods = [SpecMethod(name, k) if k else PLAIN for name, k in CHOICES.items()]
    switches = {step: rng.choice(methods) for step in range(0, 900, 3)}
    requests = [RecordedRequest(p, LENGTH, PLAIN, at=i) for i, p in enumerate(case.prompts)]
    case.engine.reset_prefix_cache()
    got = case.engine.run(requests, switches)
    found = gaps(case.together, got.outputs)
    assert all(gap < TIE_16 for gap in found), found
    assert len(found) < len(case.prompts) / 2


def test_most_drafts_of_the_original_are_the_quantised_targets(case: Case) -> None:
    """The quantised weights are the demo's: another reading of a layout would write other text."""
    method = SpecMethod("original", 4)
    got = case.engine.run([RecordedRequest(prompt, LENGTH, method) for prompt in case.prompts])
    counts = [got.accepted(i, "original", prompt) for i, prompt in enumerate(case.prompts)]
    drafted, accepted = (sum(some) for some in zip(*counts, strict=True))
    assert accepted > 0.7 * drafted > 0
