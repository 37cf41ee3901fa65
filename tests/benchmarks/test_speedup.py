"""Speedups, with a system of known speed."""

import json
from pathlib import Path

import pytest

from benchmarks import plot, report
from benchmarks.speedup import (
    LONGEST,
    SHORTEST,
    TABLE_HEAD,
    SpeedupPlan,
    measure_speedups,
    table_row,
    tables,
    without_memory,
)
from engine_adapter.proposers.methods import parse_spec
from tests.benchmarks.fake_systems import HEADS, NGRAM, SteadyLauncher


async def test_every_situation_measures_every_proposer_and_none() -> None:
    launcher = SteadyLauncher()
    plan = SpeedupPlan("t", [NGRAM, HEADS], levels=(1, 4), minutes=0.01, prompts=10)
    results = await measure_speedups(plan, launcher)
    assert launcher.started == ["all look heads"] * 2, "one server for each temperature"
    assert len(results) == 2 * 2 * 2 * 3
    assert {result.max_tokens for result in results} == {SHORTEST}
    for result in results:
        drafted = result.proposer != "none"
        each = 2 if drafted else 1
        assert result.tokens_per_s == pytest.approx(result.concurrency * each / 0.012)
        assert result.tokens_per_step == pytest.approx(each)
        assert result.step_ms == pytest.approx(12)
        assert result.gain.median == pytest.approx(each)


async def test_no_proposer_gets_a_prompt_twice_at_a_temperature() -> None:
    launcher = SteadyLauncher()
    await measure_speedups(SpeedupPlan("t", [NGRAM], levels=(1, 2, 8), minutes=0.01), launcher)
    for system in launcher.systems:
        prompts = [
            str(request.messages)
            for burst in system.bursts
            for request in burst
            if request.proposer == "look"
        ]
        assert len(prompts) == len(set(prompts)) > 40


async def test_a_policy_learns_from_another_prompt_before_it_is_measured() -> None:
    launcher = SteadyLauncher()
    plan = SpeedupPlan(
        "t", [NGRAM], (0.0,), levels=(1, 4), minutes=0.01, prompts=10, policies=("auto",)
    )
    results = await measure_speedups(plan, launcher)
    assert {result.proposer for result in results} == {"none", "look", "auto"}
    (system,) = launcher.systems
    lessons = [b for b in system.bursts if "add_all" in str(b[0].messages)]
    assert [len(burst) for burst in lessons] == [1, 1, 4]
    assert {request.proposer for burst in lessons for request in burst} == {"auto"}


def test_no_suffix_tree_remembers_answers_where_a_policy_is_measured() -> None:
    remembering = parse_spec({"name": "suffix"})
    (kept, other) = without_memory([remembering, NGRAM])
    assert kept.options["suffix_decoding_max_cached_requests"] == 0
    assert other == NGRAM


async def test_more_minutes_make_longer_answers_up_to_a_limit() -> None:
    lengths = []
    for minutes in (0.5, 2.0, 1000.0):
        plan = SpeedupPlan("t", [NGRAM], levels=(1, 2), kinds=("free",), minutes=minutes)
        lengths.append((await measure_speedups(plan, SteadyLauncher()))[0].max_tokens)
    assert SHORTEST <= lengths[0] < lengths[1] < lengths[2] == LONGEST


async def test_results_are_written_as_json_table_and_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = await measure_speedups(
        SpeedupPlan("t", [NGRAM], levels=(1, 2), minutes=0.01), SteadyLauncher()
    )
    info = report.environment_info("specgate bench gain --quick", "some/folder/wide")
    report.write(tmp_path, "gain", info, results, tables(results))
    plot.save(results, tmp_path / "gain.svg", "Target: wide")
    read = json.loads((tmp_path / "gain.json").read_text())
    assert read["command"] == "specgate bench gain --quick"
    assert read["target"] == "wide"
    assert read["results"][1]["gain"]["median"] == pytest.approx(2.0)
    assert len(read["results"][1]["samples"]) == results[1].gain.count
    table = (tmp_path / "gain.md").read_text().splitlines()
    assert table[:6] == [
        "**quote prompts, temperature 0**",
        "",
        "| proposer | 1 stream | 2 streams |",
        "|---|---|---|",
        "| `none` | 83 | 167 |",
        "| `look` | 167, x **2.00** (2.00) | 333, x **2.00** (2.00) |",
    ]
    assert table.count(table[2]) == 4
    assert {table_row(result).count("|") for result in results} == {TABLE_HEAD[0].count("|")}
    assert "<svg" in (tmp_path / "gain.svg").read_text()
