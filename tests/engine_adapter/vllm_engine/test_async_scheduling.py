"""Under asynchronous scheduling the texts are those of plain decoding.

The engine is small, so requests are preempted, prompts are read in parts and prefixes are met
again. `make test-async` runs whole files of the engine's tests so.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from engine_adapter.seam.types import SamplingOptions
from tests.cases import proved_beyond
from tests.engine_adapter.vllm_engine import test_draft_limits as draft_limits
from tests.engine_adapter.vllm_engine import test_random_plans as random_plans
from tests.engine_adapter.vllm_engine import test_sampling as sampling
from tests.engine_adapter.vllm_engine import test_structured_output as structured_output
from tests.engine_adapter.vllm_engine import test_switching as switching
from tests.engine_adapter.vllm_engine.conftest import CHOICES, PROPOSERS, THINKING
from tests.engine_adapter.vllm_engine.support.live import (
    Live,
    Prompt,
    Result,
    Stock,
    generate,
    greedy,
    pinned,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(1200),
]


SELF = next(fields for fields in PROPOSERS if fields["name"] == "self")
SAMPLED: list[dict[str, Any]] = [
    {**SELF, "name": f"self-{rule}", "draft_sampling": "probabilistic", "verification": rule}
    for rule in ("token", "block")
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def overlapped() -> AsyncIterator[Live]:
    """Every method, little KV, and the method `random`, under which rows have random plans."""
    async with random_plans.random_plans(
        [*PROPOSERS, *SAMPLED], async_scheduling=True, reasoning_config=THINKING
    ) as live:
        yield live


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def early() -> AsyncIterator[Live]:
    """As `overlapped`, but drafts are made before their step is read, as on a device."""
    async with random_plans.random_plans(PROPOSERS, early=True, async_scheduling=True) as live:
        yield live


async def test_two_steps_are_in_flight(overlapped: Live) -> None:
    engine: Any = overlapped.engine
    config = engine._supervisor.child.vllm_config
    assert config.scheduler_config.async_scheduling
    assert config.max_concurrent_batches == 2


async def test_rows_of_every_proposer_share_batches_and_keep_stock_vllms_texts(
    overlapped: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    choices = [list(CHOICES.items())[i % len(CHOICES)] for i in range(len(prompts))]
    since = len(overlapped.recorder.steps)
    results = await asyncio.gather(
        *(
            generate(overlapped, prompt, greedy(40), pinned(*choice))
            for prompt, choice in zip(prompts, choices, strict=True)
        )
    )
    await stock.greedy(prompts, 40)
    for prompt, (name, _), result in zip(prompts, choices, results, strict=True):
        await stock.check(prompt, result.tokens)
        assert set(result.spec.by_proposer) <= {name}
        if name == "self":
            counts = result.counts(name)
            assert counts.accepted == counts.drafted > 0
    totals = overlapped.recorder.totals(since)
    assert all(totals[name].accepted > 0 for name in CHOICES if name != "none")


@pytest.mark.parametrize("steps", proved_beyond([40], [40, 400]))
async def test_random_plans_change_no_text(
    overlapped: Live, stock: Stock, prompts: list[Prompt], steps: int
) -> None:
    await random_plans.fuzz(overlapped, stock, prompts, steps=steps)


@pytest.mark.parametrize("steps", proved_beyond([150], [150, 5_000]))
async def test_early_drafts_change_no_text(
    early: Live, stock: Stock, prompts: list[Prompt], steps: int
) -> None:
    before = early.engine.evidence.get("lookups", 0)
    await random_plans.fuzz(early, stock, prompts, steps=steps, share=0.005)
    assert early.engine.evidence["lookups"] - before > steps / 3


async def test_a_seeded_text_with_lookups_on_the_device_is_that_of_plain_decoding(
    early: Live, prompts: list[Prompt]
) -> None:
    before = early.engine.evidence.get("lookups", 0)

    async def texts(name: str, k: int) -> list[Result]:
        options = {"max_tokens": 60, "ignore_eos": True} | sampling.OPTIONS["everything"]
        return await asyncio.gather(
            *(
                generate(early, prompt, SamplingOptions(**options, seed=seed), pinned(name, k))
                for seed, prompt in enumerate(prompts)
            )
        )

    plain, drafted = await texts("none", 0), await texts("ngram", 5)
    assert [result.tokens for result in drafted] == [result.tokens for result in plain]
    assert sum(result.counts("ngram").accepted for result in drafted) > 0
    assert early.engine.evidence["lookups"] > before


async def test_policies_change_no_text(
    overlapped: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    # So few that the policy `load` drafts.
    await random_plans.fuzz_policies(overlapped, stock, prompts, steps=100, clients=8)


@pytest.mark.parametrize(
    "running", proved_beyond([True], [True, False]), ids=["immediate", "new_requests"]
)
async def test_fifty_switches_change_no_text(
    overlapped: Live, stock: Stock, prompts: list[Prompt], running: bool
) -> None:
    await switching.test_fifty_switches_under_sixteen_streams_change_no_output(
        overlapped, stock, prompts, running
    )


@pytest.mark.parametrize("options", proved_beyond(["everything"], sampling.OPTIONS))
async def test_a_seeded_text_is_that_of_plain_decoding(
    overlapped: Live, prompts: list[Prompt], options: str
) -> None:
    await sampling.check_seeded(overlapped, prompts, sampling.OPTIONS[options])


async def test_drafts_follow_the_options_of_their_request(
    overlapped: Live, prompts: list[Prompt]
) -> None:
    options = draft_limits.OPTIONS["penalties"]
    await draft_limits.test_drafts_follow_the_options_of_their_request(overlapped, prompts, options)


@pytest.mark.parametrize("options", proved_beyond(["everything"], ["temperature", "everything"]))
async def test_sampled_drafts_change_no_seeded_text_and_are_accepted(
    overlapped: Live, prompts: list[Prompt], options: str
) -> None:
    """The target as its own draft: with a seed by its noise, without by its distribution."""

    async def texts(name: str, seeds: list[int | None]) -> list[Result]:
        sampled = [
            SamplingOptions(
                **({"max_tokens": 40, "ignore_eos": True, "seed": seed} | sampling.OPTIONS[options])
            )
            for seed in seeds
        ]
        pairs = zip(prompts, sampled, strict=False)
        return await asyncio.gather(
            *(generate(overlapped, p, s, pinned(name, 5)) for p, s in pairs)
        )

    plain, *drafted = await asyncio.gather(
        texts("none", [0, 1, 2, 3]),
        *(texts(fields["name"], [0, 1, 2, 3]) for fields in SAMPLED),
        *(texts(fields["name"], [None] * 4) for fields in SAMPLED),
    )
    for results in drafted[:2]:
        assert [result.tokens for result in results] == [result.tokens for result in plain]
    for results, fields in zip(drafted, SAMPLED * 2, strict=True):
        share, count = draft_limits.share(results, fields["name"])
        assert count > 50
        assert share >= draft_limits.LEAST


async def test_log_probabilities_are_those_of_plain_decoding(
    overlapped: Live, prompts: list[Prompt]
) -> None:
    await sampling.test_logprobs_are_the_same_under_every_proposer(overlapped, prompts)


async def test_structured_output_is_that_of_plain_decoding_and_forced_text_is_drafted(
    overlapped: Live, prompts: list[Prompt]
) -> None:
    for schema, _ in structured_output.SCHEMAS[:2]:
        constraint = structured_output.constrained(structured_output.of_schema(schema))
        texts = {}
        for name, k in {"none": 0, "suffix": 8, "self": 5, "forced-first": 5}.items():
            result = await generate(overlapped, prompts[0], constraint, pinned(name, k))
            texts[name] = result.tokens
            if name in ("self", "forced-first"):
                assert result.counts(name).accepted > 0
        assert len(set(texts.values())) == 1
