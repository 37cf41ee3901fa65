"""Specgate's hooks in vLLM's GPU runner: profiling, capture, and steps that replay graphs.

See `support/pretend_gpu.py` for what is replaced. Not seen here are the kernels of GPUs, Inductor's
code, memory that is not torch's, and the order of work on streams.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo import model_path
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import NONE, SpecMethod
from tests.engine_adapter.proposers.dflash_heads import dflash
from tests.engine_adapter.vllm_engine.conftest import COMMON, TARGET
from tests.engine_adapter.vllm_engine.support import pretend_gpu
from tests.engine_adapter.vllm_engine.support.draft_comparisons import same_drafts
from tests.engine_adapter.vllm_engine.support.live import Prompt
from tests.engine_adapter.vllm_engine.support.pretend_gpu import (
    CAPTURING,
    GRAPH_MEMORY,
    PROFILE,
    SERVING,
    SIZES,
    DummyRun,
)
from tests.engine_adapter.vllm_engine.support.pretend_graphs import CAPTURE, REPLAY, GraphEvent
from tests.engine_adapter.vllm_engine.support.recorded import (
    RecordedEngine,
    RecordedRequest,
    RecordedRun,
    running_runner,
)

pytestmark = [pytest.mark.engine, pytest.mark.prove]

TOKENS, ROWS, K = 128, 12, 4
LENGTH = 40
MODELS = ("draft", "eagle3", "dflash")
"""The proposers with a model of their own."""

DECODING = ("draft", "eagle3")
"""Those that draft one token after the other."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Proposers of every kind that runs a model, and one that does not."""
    target = json.loads((Path(TARGET) / "config.json").read_text())
    block = dflash(target, target_layers=[1, 3, 4], seed=2)
    proposers: list[dict[str, Any]] = [
        {
            "name": "draft",
            "method": "draft_model",
            "model": str(model_path("draft")),
            "draft_sampling": "probabilistic",
        },
        {"name": "eagle3", "model": str(model_path("eagle3"))},
        {"name": "dflash", "model": block.write(tmp_path_factory.mktemp("heads") / "dflash")},
        {"name": "ngram"},
    ]
    arguments = COMMON | {"max_num_batched_tokens": TOKENS, "max_num_seqs": ROWS}
    specs = parse_specs([{"num_speculative_tokens": K, **fields} for fields in proposers])
    return {"specs": specs, "arguments": arguments}


@pytest.fixture(scope="module")
def engine(config: dict[str, Any]) -> Iterator[RecordedEngine]:
    """The engine on the pretend GPU, with graphs."""
    arguments = config["arguments"] | pretend_gpu.ARGUMENTS
    started = RecordedEngine(
        EngineConfig(TARGET, "demo", config["specs"], None, arguments), pretend_gpu.install
    )
    yield started
    started.stop()


@pytest.fixture(scope="module")
def late(config: dict[str, Any]) -> Iterator[RecordedEngine]:
    """The same with asynchronous scheduling, and attention whose graphs serve rows of any length.

    Models draft before the tokens of a step are read.
    """
    arguments = config["arguments"] | pretend_gpu.ARGUMENTS | {"async_scheduling": True}
    engine_config = EngineConfig(TARGET, "demo", config["specs"], None, arguments)
    started = RecordedEngine(engine_config, pretend_gpu.install_for_any_rows)
    started.call(draft_early)
    yield started
    started.stop()


def draft_early() -> None:
    running_runner()._drafts.drafts_early = True  # as on a GPU


@pytest.fixture(scope="module")
def eager(config: dict[str, Any]) -> Iterator[RecordedEngine]:
    """The same on the CPU."""
    started = RecordedEngine(
        EngineConfig(TARGET, "demo", config["specs"], None, config["arguments"])
    )
    yield started
    started.stop()


@pytest.fixture(scope="module")
def before_serving(engine: RecordedEngine) -> tuple[list[DummyRun], list[GraphEvent]]:
    """The dummy runs and the graphs of the start."""
    return (
        [one for one in engine.call(pretend_gpu.runs) if one.phase != SERVING],
        [one for one in engine.call(pretend_gpu.events) if one.phase != SERVING],
    )


def prefix(name: str) -> str:
    return f"draft:{name}"


def run(engine: RecordedEngine, prompts: list[Prompt], name: str, **options: Any) -> RecordedRun:
    """All prompts at once, with one proposer."""
    engine.reset_prefix_cache()
    method = SpecMethod(name, 0 if name == NONE else K)
    return engine.run([RecordedRequest(p, LENGTH, method, options=options) for p in prompts])


def graphs(engine: RecordedEngine, since: int) -> Counter[tuple[str, str, int]]:
    """Model, mode and size of the graphs that the steps have replayed; none was captured."""
    served = engine.call(pretend_gpu.events)[since:]
    assert {one.kind for one in served} <= {REPLAY}
    return Counter((one.model, one.mode, one.num_tokens) for one in served)


def test_every_draft_is_in_the_profile_run(before_serving: Any) -> None:
    runs, _ = before_serving
    first = [one for one in runs if one.phase == PROFILE]
    models = ["target", *map(prefix, MODELS)]
    assert [one.model for one in first[: len(models)]] == models
    assert {(one.num_tokens, one.graphs) for one in first} == {(TOKENS, False)}


def test_every_draft_is_captured_in_the_sizes_of_the_targets_pieces(before_serving: Any) -> None:
    _, found = before_serving
    # Rows of one token, and rows with all the drafts of a model.
    whole = sorted({*(n for n in SIZES if n <= ROWS), *(K + 1, 2 * (K + 1), 4 * (K + 1))})
    for phase, of_whole in (GRAPH_MEMORY, whole[-2:]), (CAPTURING, whole):
        captured = Counter(
            (one.model, one.mode, one.num_tokens)
            for one in found
            if one.phase == phase and one.kind == CAPTURE
        )
        wanted = {("target", "PIECEWISE", size) for size in SIZES}
        wanted |= {("target", "FULL", size) for size in of_whole}
        wanted |= {(prefix(name), "PIECEWISE", size) for name in MODELS for size in SIZES}
        # Later passes; and first ones, of K + 1 tokens a row.
        of_drafts = whole
        wanted |= {(prefix(name), "FULL", n) for name in DECODING for n in of_drafts}
        assert captured == Counter(wanted), phase
    assert not any(one.kind == REPLAY for one in found)


def test_dummy_runs_of_drafts_follow_the_targets(before_serving: Any) -> None:
    runs, _ = before_serving
    targets = [at for at, one in enumerate(runs) if one.model == "target"]
    for at in targets:
        drafts = runs[at + 1 : at + 1 + len(MODELS)]
        wanted = [(prefix(name), runs[at].num_tokens, False) for name in MODELS]
        assert [(d.model, d.num_tokens, d.graphs) for d in drafts] == wanted


def test_a_plain_step_replays_a_whole_graph(engine: RecordedEngine, prompts: list[Prompt]) -> None:
    before = len(engine.call(pretend_gpu.events))
    run(engine, prompts[:3], NONE)
    found = graphs(engine, before)
    assert found[("target", "FULL", 4)] >= LENGTH - 6  # three rows, but for the prompts' steps
    assert not any(model != "target" for model, _, _ in found)


@pytest.mark.parametrize("name", MODELS)
def test_steps_with_drafts_replay_what_was_captured(
    engine: RecordedEngine, eager: RecordedEngine, prompts: list[Prompt], name: str
) -> None:
    before = len(engine.call(pretend_gpu.events))
    some = prompts[:5]
    got = run(engine, some, name)
    found = graphs(engine, before)
    assert sum(n for (model, mode, _), n in found.items() if model == prefix(name)) > 10
    if name in DECODING:  # the passes after the first one
        whole = {key: n for key, n in found.items() if key[1] == "FULL"}
        assert sum(n for (model, *_), n in whole.items() if model == prefix(name)) > 10
    assert sum(n for (model, mode, _), n in found.items() if model == "target") > 10
    assert {model for model, _, _ in found} == {"target", prefix(name)}
    # A stale input, or an output that was overwritten, would change drafts.
    assert same_drafts(got, run(eager, some, name), name) > 20
    assert got.outputs == run(engine, some, NONE).outputs


@pytest.mark.parametrize("name", DECODING)
def test_early_drafts_are_graphs_of_first_and_later_passes(
    late: RecordedEngine, eager: RecordedEngine, prompts: list[Prompt], name: str
) -> None:
    before = len(late.call(pretend_gpu.events))
    some = prompts[:3]
    got = run(late, some, name)
    replays = graphs(late, before)
    first, later = ((prefix(name), "FULL", size) for size in (4 * (K + 1), 4))
    assert replays[first] > 5
    assert replays[later] >= (K - 1) * replays[first]
    assert same_drafts(got, run(eager, some, name), name) > 15
    assert got.outputs == run(late, some, NONE).outputs


def test_rows_with_fewer_drafts_share_the_graphs(
    late: RecordedEngine, eager: RecordedEngine, prompts: list[Prompt]
) -> None:
    def run_with(engine: RecordedEngine) -> RecordedRun:
        engine.reset_prefix_cache()
        methods = [SpecMethod("eagle3", k) for k in (K, 1, 2)]
        requests = zip(prompts[:3], methods, strict=True)
        return engine.run([RecordedRequest(prompt, LENGTH, method) for prompt, method in requests])

    got, wanted = run_with(late), run_with(eager)
    assert same_drafts(got, wanted, "eagle3") > 20
    lengths = [{len(drafts) for drafts in got.of(i, "eagle3").values()} for i in range(3)]
    assert [max(of_row) for of_row in lengths] == [K, 1, 2]


def test_rows_with_different_numbers_of_drafts_replay_a_whole_graph(
    late: RecordedEngine, eager: RecordedEngine, prompts: list[Prompt]
) -> None:
    some, plain = prompts[:4], run(late, prompts[:4], NONE)
    before = len(late.call(pretend_gpu.events))
    got = run(late, some, "ngram")
    replays = graphs(late, before)
    modes = {mode for _, mode, size in replays if size <= len(some) * (K + 1)}
    assert modes == {"FULL"}  # larger ones have a part of a prompt
    assert same_drafts(got, run(eager, some, "ngram"), "ngram") > 20
    assert got.outputs == plain.outputs
