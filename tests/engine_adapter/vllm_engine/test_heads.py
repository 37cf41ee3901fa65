"""Heads draft from the right hidden state, also after a switch, a prefix hit and a preemption.

A reference computes a head's drafts after each token of a text, from the hidden states of Hugging
Face's model, and from them the numbers of steps and of accepted drafts. The engine must count the
same: a single draft from another state would change the counts.
"""

import asyncio
import itertools
import os
from collections.abc import Sequence, Set
from functools import cache

import numpy as np
import pytest
import torch

from engine_adapter.proposers.batch import DraftBatch
from engine_adapter.proposers.methods import get_method, parse_specs
from engine_adapter.seam.types import SpecDecodeParams
from tests.cases import proved_beyond
from tests.engine_adapter.vllm_engine.conftest import PROPOSERS, TARGET
from tests.engine_adapter.vllm_engine.support.live import (
    Live,
    Prompt,
    Result,
    Stock,
    generate,
    greedy,
    pinned,
    repeat_until_it_happens,
)

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

K = 4
LENGTH = 96
HEADS = ["medusa", "mlp"]


class Reference:
    """The target and its heads, run on whole texts and without an engine."""

    def __init__(self) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
        self.hidden_size: int = self._model.config.hidden_size
        self.vocab_size: int = self._model.config.vocab_size
        self.dtype, self.device = torch.float32, torch.device("cpu")
        specs = {spec.name: spec for spec in parse_specs(PROPOSERS) if spec.name in HEADS}
        self._heads = {name: get_method(s.method).create(s, self) for name, s in specs.items()}  # type: ignore[arg-type]

    @property
    def target(self) -> "Reference":
        return self

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._model.lm_head(hidden)
        return logits

    @torch.inference_mode()
    def drafts(
        self, name: str, prompt: Prompt, tokens: Sequence[int], off: int = 0
    ) -> list[list[int]]:
        """The head's drafts when `tokens[i]` is the newest token, for each i.

        With `off`, the head gets the hidden state of `off` positions before the right one.
        """
        text = np.array([*prompt, *tokens], np.int32)
        states = self._model.model(torch.from_numpy(text[None]).long()).last_hidden_state[0]
        newest = np.arange(len(prompt), len(text))
        count = np.ones(len(newest), np.int64)
        batch = DraftBatch(
            rows=np.arange(len(newest)),
            request_ids=[str(i) for i in newest],
            num_tokens=count,
            num_prompt_tokens=count,
            num_computed=count - 1,
            k=count * K,
            token_ids=text[newest, None],
            hidden=states[newest - 1 - off],
        )
        return [list(row) for row in self._heads[name].propose(batch).tokens]


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


def num_accepted(drafts: Sequence[int], text: Sequence[int]) -> int:
    """The number of leading drafts that the text agrees with."""
    pairs = enumerate(zip(drafts, text, strict=False))
    return next((i for i, (draft, token) in pairs if draft != token), min(len(drafts), len(text)))


Counts = tuple[int, int, int]
"""The drafts, drafted tokens and accepted tokens of one request."""


def possible(
    drafts: Sequence[Sequence[int]], text: Sequence[int], start: int = 1, interrupted: int = 0
) -> Set[Counts]:
    """The counts that are correct; without interruptions there is one answer.

    Args:
        drafts: the head's drafts after each token.
        text: the tokens that follow the prompt, more than `LENGTH`.
        start: how many tokens were emitted when the head began to draft.
        interrupted: the most steps that may have lost their drafts to a preemption.
    """

    @cache
    def rest(emitted: tuple[int, ...], interrupted: int) -> Set[Counts]:
        """The counts from here on; `emitted` counts the tokens now, and after earlier steps."""
        now = emitted[0]
        if now >= LENGTH:
            return {(0, 0, 0)}
        planned_at = emitted[-1]
        proposed = drafts[now - 1][: max(0, min(K, LENGTH - planned_at - 2))]
        accepted = num_accepted(proposed, text[now:])
        later = rest((now + accepted + 1, *emitted[:-1]), interrupted)
        counts = {(n + bool(proposed), d + len(proposed), a + accepted) for n, d, a in later}
        if interrupted:
            counts |= rest((now + 1, *emitted[:-1]), interrupted - 1)
        return counts

    # The scheduler plans k before the step after whose tokens the head drafts; under asynchronous
    # scheduling one step earlier still.
    steps_ahead = 2 if os.environ.get("ASYNC_SCHEDULING") else 1
    return rest((start, *[start - 1] * steps_ahead), interrupted)


def counted(result: Result, name: str) -> Counts:
    counts = result.counts(name)
    return counts.drafts, counts.drafted, counts.accepted


async def texts_of(stock: Stock, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """The tokens after each prompt, as far as drafts can reach."""
    return await stock.greedy(prompts, LENGTH + K)


async def run(live: Live, prompts: Sequence[Prompt], name: str) -> list[Result]:
    return await asyncio.gather(
        *(generate(live, prompt, greedy(LENGTH), pinned(name, K)) for prompt in prompts)
    )


@pytest.mark.parametrize("name", proved_beyond(["medusa"], HEADS))
async def test_drafts_come_from_the_state_of_the_newest_token(
    live: Live, stock: Stock, reference: Reference, prompts: list[Prompt], name: str
) -> None:
    results = await run(live, prompts, name)
    for prompt, text, result in zip(prompts, await texts_of(stock, prompts), results, strict=True):
        await stock.check(prompt, result.tokens)
        if result.tokens == text[:LENGTH]:
            assert possible(reference.drafts(name, prompt, text), text) == {counted(result, name)}
    assert sum(result.counts(name).accepted for result in results) > 300


@pytest.mark.parametrize("name", proved_beyond(["mlp"], HEADS))
async def test_a_state_that_is_one_position_off_changes_the_counts(
    stock: Stock, reference: Reference, prompts: list[Prompt], name: str
) -> None:
    for prompt, text in zip(prompts, await texts_of(stock, prompts), strict=True):
        right, wrong = (possible(reference.drafts(name, prompt, text, off), text) for off in (0, 1))
        assert right != wrong


@pytest.mark.prove
@pytest.mark.parametrize("name", HEADS)
async def test_drafts_after_a_prefix_hit_are_the_same(
    live: Live, prompts: list[Prompt], name: str
) -> None:
    first = await run(live, prompts[16:], name)
    again = await run(live, prompts[16:], name)
    assert all(result.num_cached_tokens for result in again)
    assert [counted(result, name) for result in first] == [counted(r, name) for r in again]


@pytest.mark.parametrize(
    ("name", "before"),
    proved_beyond(
        [("medusa", "none"), ("mlp", "draft")],
        itertools.product(HEADS, ("none", "suffix", "draft")),
    ),
)
async def test_drafts_after_a_switch_are_those_of_a_run_without(
    live: Live, stock: Stock, reference: Reference, prompts: list[Prompt], name: str, before: str
) -> None:
    async def switched(_: int) -> bool:
        method = await live.switch(before, 3)
        spec = SpecDecodeParams(method, switch_epoch=live.epoch)
        tasks = [
            asyncio.create_task(generate(live, prompt, greedy(LENGTH), spec))
            for prompt in prompts[8:14]
        ]
        await live.recorder.more(3)
        await live.switch(name, K)
        texts = await texts_of(stock, prompts[8:14])
        drafted = 0
        for prompt, text, task in zip(prompts[8:14], texts, tasks, strict=True):
            result = await task
            await stock.check(prompt, result.tokens)
            if result.counts(name).drafts and result.tokens == text[:LENGTH]:
                # A last step that cannot draft has no proposer, so the switch was at either step.
                drafts, start = (
                    reference.drafts(name, prompt, text),
                    LENGTH - result.counts(name).emitted,
                )
                either = possible(drafts, text, start) | possible(drafts, text, start - 1)
                assert counted(result, name) in either
            drafted += result.counts(name).drafted
        return drafted > 300

    await repeat_until_it_happens(switched)


@pytest.mark.parametrize("name", proved_beyond(["mlp"], HEADS))
async def test_drafts_after_a_preemption_are_the_same(
    cramped: Live, stock: Stock, reference: Reference, prompts: list[Prompt], name: str
) -> None:
    preempted = cramped.metric("vllm:num_preemptions_total")
    results = await run(cramped, prompts, name)
    assert cramped.metric("vllm:num_preemptions_total") > preempted
    whole = 0
    for prompt, text, result in zip(prompts, await texts_of(stock, prompts), results, strict=True):
        await stock.check(prompt, result.tokens)
        if result.tokens == text[:LENGTH]:
            drafts = reference.drafts(name, prompt, text)
            assert counted(result, name) in possible(drafts, text, interrupted=3)
            whole += counted(result, name) in possible(drafts, text)
    assert whole < len(prompts)
