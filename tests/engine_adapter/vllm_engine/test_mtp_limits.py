"""Drafts of MTP layers know what their request allows, and are sampled as configured.

The MTP layer has the logits of its target, so each rejected draft shows an option, a constraint or
a temperature that the target saw and the draft did not.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine_adapter.seam.types import SamplingOptions
from tests.engine_adapter.proposers.mtp_targets import agreeing_mimo, write_target
from tests.engine_adapter.vllm_engine.conftest import TARGET, start
from tests.engine_adapter.vllm_engine.support.live import Live, Prompt
from tests.engine_adapter.vllm_engine.test_draft_limits import LEAST, OPTIONS, jobs, of, share

pytestmark = [
    pytest.mark.engine,
    pytest.mark.prove,
    pytest.mark.asyncio(loop_scope="session"),
]

K = 4
_SAMPLED = {"method": "mtp", "num_speculative_tokens": K, "draft_sampling": "probabilistic"}
PROPOSERS: list[dict[str, Any]] = [
    {"name": "mtp", "num_speculative_tokens": K},
    {"name": "sampled", **_SAMPLED},
    {"name": "block", **_SAMPLED, "verification": "block"},
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    folder = tmp_path_factory.mktemp("mtp") / "target"
    target = write_target(agreeing_mimo(seed=3), folder, Path(TARGET))
    started = await start(PROPOSERS, target, kv_cache_memory_bytes=256 << 20)
    yield started
    await started.engine.stop()


@pytest.mark.parametrize("options", [{}, *OPTIONS.values()], ids=["none", *OPTIONS])
async def test_drafts_follow_the_options_of_their_request(
    engine: Live, prompts: list[Prompt], options: dict[str, Any]
) -> None:
    whole = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True, **options}
    sampling = [SamplingOptions(**whole)] * 4
    drafted = await of(engine, prompts[:4], sampling, "mtp", K)
    plain = await of(engine, prompts[:4], sampling, "none", 0)
    assert [result.tokens for result in drafted] == [result.tokens for result in plain]
    accepted, count = share(drafted, "mtp")
    assert count > 50
    assert accepted >= LEAST


async def test_drafts_follow_the_constraint_of_their_request(
    engine: Live, prompts: list[Prompt]
) -> None:
    chosen = prompts[:12]
    drafted = await of(engine, chosen, jobs(chosen, 0.0), "mtp", K)
    plain = await of(engine, chosen, jobs(chosen, 0.0), "none", 0)
    assert [result.tokens for result in drafted] == [result.tokens for result in plain]
    accepted, count = share(drafted, "mtp")
    assert count > 50
    assert accepted >= LEAST


@pytest.mark.parametrize("name", ["sampled", "block"])
async def test_sampled_drafts_come_from_the_targets_distribution(
    engine: Live, prompts: list[Prompt], name: str
) -> None:
    """Where the draft's distribution is the target's, no sampled draft is rejected."""
    chosen = prompts[:8]
    bias = dict.fromkeys(range(900), -2.0)
    options = SamplingOptions(temperature=1.0, max_tokens=40, ignore_eos=True, logit_bias=bias)
    sampling = [options] * len(chosen)
    results = await of(engine, chosen, sampling, name, K)
    accepted, count = share(results, name)
    assert count > 200
    assert accepted >= LEAST
    assert len({result.tokens for result in results}) == len(chosen)
    assert len({result.tokens[1:4] for result in results}) > 1


async def test_greedy_drafts_of_sampled_rows_are_often_rejected(
    engine: Live, prompts: list[Prompt]
) -> None:
    """So the test above can fail."""
    sampling = [SamplingOptions(temperature=1.0, max_tokens=40, ignore_eos=True)] * 8
    accepted, _ = share(await of(engine, prompts[:8], sampling, "mtp", K), "mtp")
    assert accepted < 0.9
