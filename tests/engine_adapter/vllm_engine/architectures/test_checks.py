"""Every architecture of the catalog on a real engine: the rows of docs/lab/architectures.md.

Each row is written to `results.json`, and `python -m
tests.engine_adapter.vllm_engine.architectures.table` writes the page's table from it.
"""

import json
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from tests.engine_adapter.proposers.eagle_heads import eagle
from tests.engine_adapter.proposers.heads import medusa
from tests.engine_adapter.vllm_engine.architectures import results
from tests.engine_adapter.vllm_engine.architectures.architecture import Architecture
from tests.engine_adapter.vllm_engine.architectures.catalog import SERVED
from tests.engine_adapter.vllm_engine.architectures.checks import (
    ENGINE,
    LENGTH,
    Checks,
    K,
    layers_of,
    make_prompts,
)
from tests.engine_adapter.vllm_engine.architectures.small_models import head_config, write_model
from tests.engine_adapter.vllm_engine.support.overlooking import overlook_a_block, overlook_nothing
from tests.engine_adapter.vllm_engine.support.recorded import RecordedEngine
from tests.engine_adapter.vllm_engine.support.stock_texts import StockTexts

pytestmark = [pytest.mark.engine, pytest.mark.prove]


class Processes:
    """Two processes that serve one architecture after another: Specgate's engine, and stock's."""

    def __init__(self) -> None:
        self.stock = StockTexts()
        self._engine: RecordedEngine | None = None

    def engine(self, config: EngineConfig) -> RecordedEngine:
        """An engine with a configuration."""
        if self._engine is None:
            self._engine = RecordedEngine(config)
        else:
            self._engine.restart(config)
        return self._engine

    def replace(self) -> None:
        """After the death of a process: the next architecture gets others."""
        self.stop()
        self.stock, self._engine = StockTexts(), None

    def stop(self) -> None:
        """Ends both."""
        self.stock.stop()
        if self._engine is not None:
            self._engine.stop()


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    """They import vLLM once for all architectures."""
    started = Processes()
    yield started
    started.stop()


def with_proposers(one: Architecture, target: str, folder: Path) -> list[dict[str, Any]]:
    """Every proposer that this target can have; the heads are random.

    A recurrent model cannot draft: `sibling` is a Llama then.
    """
    sizes = head_config(one)
    sibling = SERVED[0] if one.recurrent else one
    heads = medusa(hidden=sizes["hidden_size"], vocabulary=sizes["vocab_size"], num_heads=K)
    fields: dict[str, dict[str, Any]] = {
        "ngram": {"prompt_lookup_min": 1},
        "suffix": {},
        "self": {"method": "draft_model", "model": target},
        "sibling": {
            "method": "draft_model",
            "model": write_model(sibling, folder / "sibling", noise=0.03),
        },
        "medusa": {"model": heads.write(folder / "medusa")},
        "eagle": {"model": eagle(sizes).write(folder / "eagle")},
        "cascade": {"members": ["ngram", "medusa", "sibling" if one.recurrent else "self"]},
    }
    without = {"eagle"} if one.no_eagle else set()
    if one.recurrent:
        without.add("self")
    return [
        {"name": name, "num_speculative_tokens": K, **more}
        for name, more in fields.items()
        if name not in without
    ]


def run_checks(
    one: Architecture, processes: Processes, folder: Path, *, spoiled: bool = False
) -> results.Result:
    """Runs all checks on an architecture; `spoiled` with a rule that takes lost KV for valid."""
    target = write_model(one, folder / "target")
    proposers = with_proposers(one, target, folder)
    names = [fields["name"] for fields in proposers]
    config = json.loads((folder / "target" / "config.json").read_text())
    layers = "Mamba 2 and full" if one.recurrent else layers_of(target)
    result = results.Result(config["architectures"][0], layers, recurrent=one.recurrent)
    prompts = [prompt for some in make_prompts() for prompt in some]
    options = ENGINE | ({"enable_prefix_caching": False} if one.recurrent else {})
    given = EngineConfig(target, one.name, parse_specs(proposers), None, options)
    try:
        future = processes.stock.start(target, prompts, LENGTH, options)
        engine = processes.engine(given)
        texts = dict(zip(prompts, future.result(timeout=400), strict=True))
        engine.call(overlook_a_block if spoiled else overlook_nothing)
        Checks(engine, names, texts, result).run_all()
    except BrokenProcessPool:
        processes.replace()
        raise
    return result


@pytest.mark.parametrize("one", SERVED, ids=[one.name for one in SERVED])
def test_every_proposer_is_exact(one: Architecture, processes: Processes, tmp_path: Path) -> None:
    result = run_checks(one, processes, tmp_path)
    results.save(one.name, result)
    assert result.proven, result
    assert one.recurrent or result.own_drafts > LENGTH
    assert result.drafts > LENGTH


def test_a_rule_that_overlooks_a_block_is_caught(processes: Processes, tmp_path: Path) -> None:
    """It costs drafts, never a text."""
    result = run_checks(SERVED[0], processes, tmp_path, spoiled=True)
    assert result.own_wrong > 0
    assert result.drafts_differ > 0
    assert not any(cell.differ for cell in result.all_cells())
    assert not result.proven
