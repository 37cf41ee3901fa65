"""Rounds, pairs and started systems, with systems of known speed."""

import pytest

from benchmarks.compare import TABLE_HEAD, Comparison, ComparisonPlan, compare, table_row
from benchmarks.sides import Side
from engine_adapter.proposers.contract import ProposerSpec
from tests.benchmarks.fake_systems import HEADS, NGRAM, SteadyLauncher


async def test_each_side_is_compared_with_the_first() -> None:
    seen: list[Comparison] = []
    plan = ComparisonPlan("t", [NGRAM], ["none", "look"], levels=(1, 4), pairs=4, max_tokens=33)
    results = await compare(plan, SteadyLauncher(), seen.append)
    keys = [(r.method, r.concurrency, r.side) for r in results]
    assert keys == [(m, c, s) for m in plan.methods for c in (1, 4) for s in plan.sides]
    by_key = dict(zip(keys, results, strict=True))
    one = by_key["look", 4, Side.ONE]
    assert one.base == "stock"
    assert one.tokens_per_s == pytest.approx(4 * 2 / 0.011)
    assert one.tokens_per_step == pytest.approx(2)
    assert one.ratio.median == pytest.approx(10 / 11)
    assert one.added_ms.text(1, "+") == "+1.0 (+1.0 to +1.0)"
    assert one.ratio.count == len(one.samples) == 4
    assert by_key["none", 1, Side.ALL].added_ms.median == pytest.approx(2.0)
    assert seen == results
    assert {row.count("|") for row in [*TABLE_HEAD, *map(table_row, results)]} == {
        TABLE_HEAD[0].count("|")
    }


async def test_rounds_run_forwards_and_backwards_on_the_same_prompts() -> None:
    launcher = SteadyLauncher()
    plan = ComparisonPlan(
        "t", [], ["none"], levels=(2,), pairs=3, max_tokens=9, sides=(Side.STOCK, Side.ONE)
    )
    await compare(plan, launcher)
    stock, one, one_again, stock_again = launcher.systems
    assert stock.bursts == one.bursts
    assert stock_again.bursts == one_again.bursts
    assert (len(stock.bursts), len(stock_again.bursts)) == (1 + 2, 1 + 1)
    assert stock.bursts[1] != stock.bursts[2] != stock_again.bursts[1] != stock.bursts[1]


async def test_sides_are_started_in_both_orders() -> None:
    launcher = SteadyLauncher()
    await compare(
        ComparisonPlan("t", [NGRAM], ["none"], levels=(1,), pairs=2, max_tokens=9), launcher
    )
    there, back = launcher.started[:3], launcher.started[3:]
    assert there == ["stock none", "one", "all look"]
    assert back == there[::-1]


async def test_one_pair_needs_one_turn() -> None:
    launcher = SteadyLauncher()
    await compare(ComparisonPlan("t", [], ["none"], [Side.ONE], (1,), 1, 9), launcher)
    assert launcher.started == ["one"]


async def test_stock_is_left_out_if_vllm_lacks_the_method() -> None:
    launcher = SteadyLauncher()
    plan = ComparisonPlan(
        "t", [HEADS, NGRAM], ["heads", "look"], levels=(1,), pairs=2, max_tokens=9
    )
    results = await compare(plan, launcher)
    heads, look = ["one heads", "all heads look"], ["stock look", "one look", "all heads look"]
    assert launcher.started == [*heads, *reversed(heads), *look, *reversed(look)]
    assert [(r.method, r.side, r.base) for r in results][:3] == [
        ("heads", "one", "one"),
        ("heads", "all", "one"),
        ("look", "stock", "stock"),
    ]


async def test_a_cascade_is_loaded_with_its_members() -> None:
    launcher = SteadyLauncher()
    both = ProposerSpec("both", "cascade", 5, None, {"members": ["look", "heads"]})
    plan = ComparisonPlan("t", [NGRAM, HEADS, both], ["both"], [Side.ONE], (1,), 2, 9)
    await compare(plan, launcher)
    assert launcher.started == ["one look heads both"] * 2


async def test_an_unknown_method_is_named() -> None:
    with pytest.raises(ValueError, match="no proposer 'nobody'; the proposers are look"):
        await compare(ComparisonPlan("t", [NGRAM], ["nobody"]), SteadyLauncher())
