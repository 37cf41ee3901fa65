"""The stage with an engine: what it calls a problem. The engine is scripted."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_check import engine_stage
from benchmarks.gpu_check.engine_stage import EngineCheck, Observer
from benchmarks.gpu_check.plan import EngineTask
from benchmarks.gpu_check.prompts import Tokens, first_difference
from engine_adapter.seam.counts import ProposerCounts, StepKind, StepReport
from engine_adapter.seam.types import Alternative, Delta, GenerationRequest, Switch, TokenLogprob

PROMPTS: list[Tokens] = [(1, 2), (3, 4, 5)]
LENGTH = 40
PLAIN_TEXT = tuple(range(100, 100 + LENGTH))
DRAFT = {"name": "draft", "method": "draft_model", "model": "a/b", "num_speculative_tokens": 4}


class Scripted:
    """An engine whose greedy text is `PLAIN_TEXT`, and whose draft model always drafts.

    Attributes:
        text: request -> its text, in place of that.
        gap: how much less likely than the likeliest one the tokens of a text are.
        drafted: tokens that the draft model drafts for a text.
        faults: of each step.
        switches: those that were asked for.
    """

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.text: Callable[[GenerationRequest], Tokens] = lambda request: PLAIN_TEXT
        self.gap = 0.0
        self.drafted = 30
        self.faults: dict[str, str] = {}
        self.switches: list[Switch] = []

    async def start(self, on_progress: Callable[[str], None]) -> None: ...

    async def stop(self) -> None: ...

    async def switch(self, switch: Switch, *, running: bool) -> None:
        assert running
        self.switches.append(switch)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        if request.sampling.prompt_logprobs is not None:
            best, own = Alternative(1, "", -0.5), Alternative(2, "", -0.5 - self.gap)
            place = TokenLogprob(own, (best, own))
            yield Delta(prompt_logprobs=(None, *[place] * (len(request.prompt_token_ids) - 1)))
            return
        name = request.spec_decode.spec_method.proposer
        counts = {"none": ProposerCounts(emitted=9)}
        if name != "none" and self.drafted:
            counts[name] = ProposerCounts(5, self.drafted, 7, emitted=9)
        self.observer.on_step(StepReport(StepKind.VERIFY, 0.1, counts, {}, {}, {}, self.faults))
        text = self.text(request)
        for at in range(0, len(text), 4):
            await asyncio.sleep(0)
            yield Delta(token_ids=text[at : at + 4])


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> EngineCheck:
    monkeypatch.setattr(engine_stage, "read_prompts", lambda target, count: PROMPTS)
    monkeypatch.setattr(engine_stage, "create_engine", lambda *given: Scripted(given[-1]))
    return EngineCheck(
        EngineTask(
            target="t",
            proposers=[DRAFT, {"name": "ngram"}],
            arguments={},
            prompts=2,
            max_tokens=LENGTH,
            tie=0.25,
            stock_texts=str(tmp_path / "stock.json"),
            result=str(tmp_path / "result.json"),
        )
    )


def engine(check: EngineCheck) -> Any:
    return check._engine


def write_stock_texts(check: EngineCheck, text: Tokens, **of: str) -> None:
    kept = {"of": check._task.texts_of | of, "texts": [text for _ in PROMPTS]}
    Path(check._task.stock_texts).write_text(json.dumps(kept))


def differs_for(name: str) -> Callable[[GenerationRequest], Tokens]:
    def text(request: GenerationRequest) -> Tokens:
        other = request.spec_decode.spec_method.proposer == name
        return (*PLAIN_TEXT[:-1], 7) if other else PLAIN_TEXT

    return text


async def test_every_proposer_is_run_greedy_and_sampled_and_all_are_switched_to(
    check: EngineCheck,
) -> None:
    write_stock_texts(check, PLAIN_TEXT)
    await check.run()
    assert check.problems == []
    assert [row["method"] for row in check.rows] == [
        "none",
        *("draft", "draft, temperature 0.8"),
        *("ngram", "ngram, temperature 0.8"),
        "switched while they run",
    ]
    assert all(row["same texts"] == "2 of 2" for row in check.rows if "0.8" not in row["method"])
    names = [switch.spec_method.proposer for switch in engine(check).switches]
    assert names[:3] == ["draft", "ngram", "none"]
    assert [switch.epoch for switch in engine(check).switches] == list(range(1, len(names) + 1))


async def test_a_text_that_is_not_the_likeliest_is_a_problem(check: EngineCheck) -> None:
    engine(check).text, engine(check).gap = differs_for("ngram"), 0.3
    await check.run()
    (problem,) = check.problems
    assert problem.startswith("ngram: a token is 0.3 less likely than the likeliest one")
    (row,) = [row for row in check.rows if row["method"] == "ngram"]
    assert (row["same texts"], row["largest gap"]) == ("0 of 2", pytest.approx(0.3))


async def test_a_tie_is_not_a_problem(check: EngineCheck) -> None:
    engine(check).text, engine(check).gap = differs_for("ngram"), 0.2
    await check.run()
    assert check.problems == []


async def test_with_batch_invariant_kernels_even_a_tie_is_a_problem(check: EngineCheck) -> None:
    check._task = replace(check._task, tie=None, stock_texts="")
    engine(check).text = differs_for("ngram")
    await check.run()
    assert check.problems == ["ngram: 2 of 2 texts differ; none may"]
    assert check.rows[0]["same texts"] == "not compared"


async def test_a_text_that_ends_early_is_not_the_same(check: EngineCheck) -> None:
    def text(request: GenerationRequest) -> Tokens:
        short = request.spec_decode.spec_method.proposer == "draft"
        return PLAIN_TEXT[:-4] if short else PLAIN_TEXT

    engine(check).text, engine(check).gap = text, 1.0
    await check.run()
    assert [problem.split(":")[0] for problem in check.problems] == ["draft"]


async def test_plain_decoding_is_compared_with_stock_vllm(check: EngineCheck) -> None:
    write_stock_texts(check, (*PLAIN_TEXT[:-1], 7))
    engine(check).gap = 2.0
    await check.run()
    assert [problem.split(":")[0] for problem in check.problems] == ["none"]


@pytest.mark.parametrize("field", ["target", "dtype", "max_tokens"])
async def test_stock_texts_of_another_check_are_not_compared_with(
    check: EngineCheck, capsys: pytest.CaptureFixture[str], field: str
) -> None:
    write_stock_texts(check, (1,), **{field: "another"})
    await check.run()
    assert check.problems == []
    assert check.rows[0]["same texts"] == "not compared"
    assert "run the stage `stock`" in capsys.readouterr().out


async def test_a_model_that_never_drafts_is_a_problem_and_a_search_is_not(
    check: EngineCheck,
) -> None:
    engine(check).drafted = 0
    await check.run()
    assert check.problems == [
        "draft: it never drafted",
        "draft, temperature 0.8: it never drafted",
    ]


async def test_a_fault_is_a_problem(check: EngineCheck) -> None:
    engine(check).faults = {"draft": "RuntimeError: CUDA graph capturing detected"}
    await check.run()
    assert (
        "draft: draft failed 2 times: RuntimeError: CUDA graph capturing detected" in check.problems
    )


def test_an_engine_that_dies_ends_the_stage() -> None:
    with pytest.raises(RuntimeError, match="the engine died"):
        Observer().on_restart(True)


def test_where_texts_differ() -> None:
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) is None
