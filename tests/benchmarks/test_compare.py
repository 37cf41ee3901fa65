"""Rounds, pairs and what is started, on sides whose speed is known."""

import pytest

from benchmarks.compare import HEAD, Compared, Comparison, compare, line
from engine_adapter.proposers.contract import ProposerSpec
from tests.benchmarks.sides import HEADS, NGRAM, SteadyHost


async def test_each_side_is_compared_with_the_first() -> None:
    taken: list[Compared] = []
    plan = Comparison("t", [NGRAM], ["none", "look"], levels=(1, 4), pairs=4, max_tokens=33)
    results = await compare(plan, SteadyHost(), taken.append)
    keys = [(r.method, r.concurrency, r.side) for r in results]
    assert keys == [(m, c, s) for m in plan.methods for c in (1, 4) for s in plan.sides]
    by_key = dict(zip(keys, results, strict=True))
    one = by_key["look", 4, "one"]
    assert one.base == "stock"
    assert one.tokens_per_s == pytest.approx(4 * 2 / 0.011)
    assert one.tokens_per_step == pytest.approx(2)
    assert one.ratio.median == pytest.approx(10 / 11)
    assert one.added_ms.text(1, "+") == "+1.0 (+1.0 to +1.0)"
    assert one.ratio.count == len(one.samples) == 4
    assert by_key["none", 1, "all"].added_ms.median == pytest.approx(2.0)
    assert taken == results
    assert {row.count("|") for row in [*HEAD, *map(line, results)]} == {HEAD[0].count("|")}


async def test_rounds_run_forwards_and_backwards_on_the_same_prompts() -> None:
    host = SteadyHost()
    plan = Comparison("t", [], ["none"], levels=(2,), pairs=3, max_tokens=9, sides=("stock", "one"))
    await compare(plan, host)
    stock, one, one_again, stock_again = host.sides
    assert stock.asked == one.asked
    assert stock_again.asked == one_again.asked
    assert (len(stock.asked), len(stock_again.asked)) == (1 + 2, 1 + 1)
    assert stock.asked[1] != stock.asked[2] != stock_again.asked[1] != stock.asked[1]


async def test_sides_are_started_in_both_orders() -> None:
    host = SteadyHost()
    await compare(Comparison("t", [NGRAM], ["none"], levels=(1,), pairs=2, max_tokens=9), host)
    there, back = host.started[:3], host.started[3:]
    assert there == ["stock none", "one", "all look"]
    assert back == there[::-1]


async def test_one_pair_needs_one_turn() -> None:
    host = SteadyHost()
    await compare(Comparison("t", [], ["none"], ["one"], (1,), 1, 9), host)
    assert host.started == ["one"]


async def test_stock_is_left_out_where_it_has_no_such_method() -> None:
    host = SteadyHost()
    plan = Comparison("t", [HEADS, NGRAM], ["heads", "look"], levels=(1,), pairs=2, max_tokens=9)
    results = await compare(plan, host)
    heads, look = ["one heads", "all heads look"], ["stock look", "one look", "all heads look"]
    assert host.started == [*heads, *reversed(heads), *look, *reversed(look)]
    assert [(r.method, r.side, r.base) for r in results][:3] == [
        ("heads", "one", "one"),
        ("heads", "all", "one"),
        ("look", "stock", "stock"),
    ]


async def test_a_cascade_is_loaded_with_its_members() -> None:
    host = SteadyHost()
    both = ProposerSpec("both", "cascade", 5, None, {"members": ["look", "heads"]})
    plan = Comparison("t", [NGRAM, HEADS, both], ["both"], ["one"], (1,), 2, 9)
    await compare(plan, host)
    assert host.started == ["one look heads both"] * 2


async def test_an_unknown_method_is_named() -> None:
    with pytest.raises(ValueError, match="no proposer 'nobody'; there are look"):
        await compare(Comparison("t", [NGRAM], ["nobody"]), SteadyHost())
