"""A stage: one Specgate engine, every proposer and switches, and their texts compared.

python -m benchmarks.gpu_check.engine_stage TASK
"""

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from benchmarks.gpu_check.plan import EngineTask
from benchmarks.gpu_check.prompts import Tokens, read_prompts
from benchmarks.gpu_check.texts import SAMPLED, TextRun, Texts
from benchmarks.gpu_check.waits import CHECK, RUN, STEPS, name_callers
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.methods import get_method, needs, parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.counts import ProposerCounts, StepReport
from engine_adapter.seam.factory import create_engine
from engine_adapter.seam.interface import Engine
from engine_adapter.seam.types import NONE, PLAIN, SpecMethod

SWITCHED = "switched while they run"

NOT_COMPARED = "not compared"
"""Of sampled texts, and of plain ones without stock vLLM's."""

if CHECK in os.environ:
    # When this is imported, because the process of the engine, in which the steps run, imports it.
    name_callers()


class Observer:
    """An `EngineObserver` that adds up what the steps report.

    Attributes:
        steps: how many there were.
        counts: proposer -> the drafts that were verified.
        faults: proposer -> the causes of its faults.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets what was reported."""
        self.steps = 0
        self.counts: dict[str, ProposerCounts] = {}
        self.faults: dict[str, Counter[str]] = {}

    def on_step(self, report: StepReport) -> None:
        """Adds a step."""
        self.steps += 1
        for name, counts in report.verified.items():
            self.counts[name] = self.counts.get(name, ProposerCounts()) + counts
        for name, cause in report.faults.items():
            self.faults.setdefault(name, Counter())[cause] += 1

    def on_restart(self, succeeded: bool) -> None:
        """Raises: a check whose engine died says nothing."""
        raise RuntimeError("the engine died and was replaced: see the log")


class EngineCheck:
    """Runs every proposer on one engine.

    Attributes:
        rows: of the report.
        problems: what is wrong.
    """

    def __init__(self, task: EngineTask) -> None:
        self._task = task
        self._specs = parse_specs(task.proposers)
        self._prompts = read_prompts(task.target, task.prompts)
        self._observer = Observer()
        config = EngineConfig(task.target, "checked", self._specs, None, task.arguments)
        self._engine: Engine = create_engine("vllm", config, CollectorRegistry(), self._observer)
        self._texts = Texts(self._engine, self._prompts, task.max_tokens)
        self.rows: list[dict[str, Any]] = []
        self.problems: list[str] = []

    async def run(self) -> None:
        """Starts the engine, checks, and ends it."""
        await self._engine.start(lambda line: print(line, flush=True))
        try:
            await self._check()
        finally:
            await self._engine.stop()

    async def _check(self) -> None:
        await self._texts.generate(PLAIN)  # what is compiled or allocated on first use
        plain = await self._observed(NONE, self._texts.generate(PLAIN))
        await self._compare(NONE, plain, self._stock_texts())
        for spec in self._specs:
            await self._check_proposer(spec, plain.texts)
        methods = [PLAIN, *(_method(spec) for spec in self._specs)]
        switched = await self._observed(SWITCHED, self._texts.generate_switching(methods))
        await self._compare(SWITCHED, switched, plain.texts)

    async def _observed(self, name: str, run: Awaitable[TextRun]) -> TextRun:
        """A run, whose steps alone are then in the observer, and between two lines of the log."""
        self._observer.clear()
        print(f"{RUN}{name}", flush=True)
        texts = await run
        print(f"{STEPS}{self._observer.steps}", flush=True)
        return texts

    def _stock_texts(self) -> list[Tokens] | None:
        """Stock vLLM's texts; `None` if its stage failed, or ran with another target or prompts."""
        if not self._task.stock_texts:
            return None
        path = Path(self._task.stock_texts)
        stored_texts = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        if stored_texts.get("of") != self._task.texts_of:
            print("stock vLLM's texts are missing: run the stage `stock`", flush=True)
            return None
        return [tuple(text) for text in stored_texts["texts"]]

    async def _check_proposer(self, spec: ProposerSpec, plain: Sequence[Tokens]) -> None:
        for sampled in (False, True):
            name = f"{spec.name}, {SAMPLED}" if sampled else spec.name
            texts = self._texts.generate(_method(spec), sampled=sampled)
            run = await self._observed(name, texts)
            await self._compare(name, run, None if sampled else plain)
            # A search finds nothing in some texts; a model always drafts.
            drafted = self._observer.counts.get(spec.name, ProposerCounts()).drafted
            method = get_method(spec.method).capabilities
            if not drafted and needs(spec, self._specs).runs_model and not method.constraint:
                self.problems.append(f"{name}: it never drafted")

    async def _compare(
        self, name: str, run: TextRun, expected_texts: Sequence[Tokens] | None
    ) -> None:
        """Adds a row, and what is wrong with the texts or with the proposers."""
        row: dict[str, Any] = {"method": name, "tokens/s": run.tokens_per_s}
        if expected_texts is None:
            row["same texts"] = NOT_COMPARED
        else:
            gaps = await self._texts.gaps(run.texts, expected_texts)
            num_equal = sum(gap is None for gap in gaps)
            row["same texts"] = f"{num_equal} of {len(gaps)}"
            row["largest gap"] = max((gap for gap in gaps if gap is not None), default=0.0)
            tie, different = self._task.tie, len(gaps) - num_equal
            if tie is None and different:
                self.problems.append(f"{name}: {different} of {len(gaps)} texts differ; none may")
            elif tie is not None and row["largest gap"] > tie:
                self.problems.append(
                    f"{name}: a token is {row['largest gap']:.3g} less likely than the likeliest "
                    f"one (in log probability); at most {tie:g} is rounding"
                )
        counts = sum(
            (c for n, c in self._observer.counts.items() if n != NONE), start=ProposerCounts()
        )
        row |= {"drafted": counts.drafted, "accepted": counts.accepted}
        self.rows.append(row)
        for proposer, causes in self._observer.faults.items():
            ((cause, _),) = causes.most_common(1)
            self.problems.append(f"{name}: {proposer} failed {causes.total()} times: {cause}")


def _method(spec: ProposerSpec) -> SpecMethod:
    return SpecMethod(spec.name, spec.num_speculative_tokens)


def main(text: str) -> None:
    """Runs the task, an `EngineTask` as JSON."""
    task = EngineTask.from_json(text)
    check = EngineCheck(task)
    asyncio.run(check.run())
    results = {"rows": check.rows, "problems": check.problems}
    Path(task.result).write_text(json.dumps(results), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
