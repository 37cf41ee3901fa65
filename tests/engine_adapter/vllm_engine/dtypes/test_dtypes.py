"""Targets in several dtypes, and quantized ones, on a real engine: the rows of docs/lab/models.md.

With `-s` each test prints its row of the table.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import SpecMethod
from tests.engine_adapter.proposers.eagle_heads import eagle
from tests.engine_adapter.proposers.mtp_targets import HEAD, mimo, write_target
from tests.engine_adapter.vllm_engine.conftest import FOR_CONSTRAINTS, PROPOSERS, TARGET
from tests.engine_adapter.vllm_engine.dtypes.checkpoints import LAYOUTS, write_quantized
from tests.engine_adapter.vllm_engine.dtypes.checks import (
    BEYOND,
    BLOCK,
    LENGTH,
    OWN,
    Checks,
    Counts,
)
from tests.engine_adapter.vllm_engine.dtypes.stock_engine import Measured, StockEngine
from tests.engine_adapter.vllm_engine.support.live import Prompt
from tests.engine_adapter.vllm_engine.support.recorded import RecordedEngine

pytestmark = [pytest.mark.engine, pytest.mark.prove]

ORIGINAL = "original"
"""The target before it was quantized, as a draft model."""

LEAST_ACCEPTED = 0.5
"""Of the drafts of `ORIGINAL`: a checkpoint that is packed in another order writes other texts."""

THREADS = os.environ.get("THREADS", "2")
"""With one thread, vLLM's results on CPU do not depend on the batch, and have no noise."""

ENGINE: dict[str, Any] = {
    "max_model_len": 1024,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 1024,
    "block_size": BLOCK,
    "kv_cache_memory_bytes": 512 << 20,
}

FOUR_BITS = "AWQ", "GPTQ", "W4A16"
"""Layouts whose weights have 4 bits."""

COLUMNS = ("ngram", "suffix", "draft", OWN, ORIGINAL, "medusa", "mlp", "eagle", "eagle3", "mtp")


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes:
        name: of the row.
        layout: of the checkpoint; the demo's own without.
        arguments: of the engine.
        has_mtp: the target is a small MiMo with its MTP layer, instead of the demo's.
    """

    name: str
    layout: str = ""
    arguments: Mapping[str, Any] = field(default_factory=lambda: {"dtype": "bfloat16"})
    has_mtp: bool = False

    def write(self, folder: Path) -> tuple[str, list[dict[str, Any]]]:
        """The target and its proposers."""
        target = Path(TARGET)
        if self.has_mtp:
            target = Path(write_target(mimo(seed=3), folder / "mimo", target))
        original = str(target)
        if self.layout:
            target = Path(write_quantized(LAYOUTS[self.layout], target, folder / "target"))
        if self.has_mtp:
            return str(target), _beside_mtp(folder)
        proposers = [
            fields | {"model": str(target)} if fields["name"] == OWN else fields
            for fields in PROPOSERS
            if fields["name"] not in FOR_CONSTRAINTS
        ]
        if self.layout:
            draft = {"method": "draft_model", "model": original, "num_speculative_tokens": 4}
            proposers.append({"name": ORIGINAL, **draft})
        return str(target), proposers


def _beside_mtp(folder: Path) -> list[dict[str, Any]]:
    proposers: list[dict[str, Any]] = [
        {"name": "mtp"},
        {"name": "ngram"},
        {"name": "eagle", "model": eagle(HEAD, seed=1).write(folder / "eagle")},
        {"name": "cascade", "members": ["ngram", "mtp"]},
    ]
    return [{"num_speculative_tokens": 3, **one} for one in proposers]


CASES = (
    Case("float32", arguments={"dtype": "float32"}),
    Case("bfloat16"),
    Case("float16", arguments={"dtype": "float16"}),
    Case("AWQ", "AWQ"),
    Case("GPTQ", "GPTQ"),
    Case("W4A16", "W4A16"),
    Case("W8A8", "W8A8"),
    Case("fp8 KV", arguments={"dtype": "bfloat16", "kv_cache_dtype": "fp8"}),
    Case("bfloat16, mtp", has_mtp=True),
    Case("AWQ, mtp", "AWQ", has_mtp=True),
)


class Processes:
    """Two processes that serve one target after another: Specgate's engine, and stock's."""

    def __init__(self) -> None:
        self.stock = StockEngine()
        self._engine: RecordedEngine | None = None

    def serve(self, case: Case, folder: Path, prompts: Sequence[Prompt]) -> Checks:
        """Starts both on the target of a case, and measures its noise."""
        target, proposers = case.write(folder)
        specs = parse_specs(proposers)
        arguments = {**ENGINE, **case.arguments}
        self.stock.serve(target, arguments)
        measured = self.stock.measure(prompts, LENGTH)
        config = EngineConfig(target, case.name, specs, None, arguments)
        if self._engine is None:
            self._engine = RecordedEngine(config)
        else:
            self._engine.restart(config)
        methods = [SpecMethod(spec.name, spec.num_speculative_tokens) for spec in specs]
        show(case, measured)
        return Checks(self._engine, self.stock, measured, methods)

    def stop(self) -> None:
        """Ends both."""
        self.stock.stop()
        if self._engine is not None:
            self._engine.stop()


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    """They import vLLM once for all dtypes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", THREADS)
        started = Processes()
        yield started
        started.stop()


@pytest.fixture(scope="module")
def some(prompts: list[Prompt]) -> list[Prompt]:
    """Three prompts of up to 600 tokens, and three that take two blocks but for six tokens."""
    whole = [prompts[0][:150], prompts[16][:450], prompts[18][:600]]
    return [*whole, *(prompts[i][-(2 * BLOCK - 6) :] for i in (1, 9, 11))]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_proposer_writes_what_plain_decoding_could(
    case: Case, processes: Processes, some: list[Prompt], tmp_path: Path
) -> None:
    if case.layout in FOUR_BITS and "AVX512" not in torch.backends.cpu.get_cpu_capability():
        pytest.skip("vLLM has kernels for 4 bits on CPUs with AVX-512 only")
    checks = processes.serve(case, tmp_path, some)
    checks.plain()
    checks.greedy()
    checks.switch(some)
    checks.prefix_hit(some[1])
    checks.preemption(some[3:])
    found = checks.found
    print(row(case, checks))
    assert not found.wrong, found
    if case.layout and not case.has_mtp:
        assert found.accepted[ORIGINAL] > LEAST_ACCEPTED * found.drafted[ORIGINAL]
    spoiled = checks.control().by_proposer
    print("control:", {name: counts.wrong for name, counts in spoiled.items()})
    assert spoiled["ngram"].wrong
    assert spoiled["eagle"].wrong


def show(case: Case, measured: Measured) -> None:
    """Prints the measured noise."""
    limit = BEYOND * max(measured.shifts)
    below = sum(gap <= limit for gap in measured.gaps) / len(measured.gaps)
    middle = sorted(measured.shifts)[len(measured.shifts) // 2]
    print(
        f"\n{case.name}: {len(measured.shifts)} positions, noise {middle:.2g} in the median, "
        f"{max(measured.shifts):.2g} at most; second-best within the limit: {below:.1%}"
    )


def row(case: Case, checks: Checks) -> str:
    """The row of the table."""
    found = checks.found
    cells = [cell(found.by_proposer.get(name)) for name in (*COLUMNS, "cascade")]
    own = f"{found.own:,} ({found.own_refused})"
    return (
        f"| {case.name} | {found.limit:.2g} | {found.farthest:.2g} | {' | '.join(cells)} | {own} |"
    )


def cell(counts: Counts | None) -> str:
    """The texts of a proposer, and how many of them leave stock vLLM's."""
    if counts is None:
        return ""
    wrong = f", {counts.wrong} wrong" if counts.wrong else ""
    return f"{counts.texts} ({counts.ties}{wrong})"
