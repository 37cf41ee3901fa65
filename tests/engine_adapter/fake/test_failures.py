"""Injected failures, and the engine's start, death and stop."""

import asyncio
from typing import Any

import pytest

from engine_adapter.config import EngineConfig
from engine_adapter.errors import (
    EngineConfigError,
    EngineDead,
    EngineError,
    EngineNotReady,
    EngineStartError,
)
from engine_adapter.fake.engine import FakeEngine
from engine_adapter.fake.options import read_options
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.types import PLAIN, Switch
from tests.engine_adapter.fake.bench import Bench, Reports, ask, build, run, tokens
from tests.engine_adapter.fake.conftest import StartBench


def text_prompt(bench: Bench, text: str) -> tuple[int, ...]:
    """The text's tokens."""
    assert bench.engine._vocabulary is not None
    return tuple(bench.engine._vocabulary.tokenizer.encode(text).ids)


async def test_nothing_is_served_before_the_start() -> None:
    bench = build()
    with pytest.raises(EngineNotReady):
        _ = bench.engine.info
    with pytest.raises(EngineNotReady):
        await run(bench, ask())
    with pytest.raises(EngineNotReady):
        await bench.engine.switch(Switch(PLAIN, 1), running=True)
    await bench.engine.stop()


async def test_info_describes_the_started_engine(start: StartBench) -> None:
    info = (await start()).engine.info
    assert info.engine == "fake"
    assert info.max_model_len == 2048
    assert info.vocab_size == 2048
    assert info.max_speculative_tokens == 5
    assert [p.name for p in info.proposers] == ["ngram", "draft", "prediction"]
    assert (await start(max_model_len=100)).engine.info.max_model_len == 100


async def test_a_start_can_fail_and_be_slow() -> None:
    loop = asyncio.get_running_loop()
    bench = build(fake_fail_start="no memory", fake_start_s=0.05)
    began = loop.time()
    with pytest.raises(EngineStartError, match="no memory"):
        await bench.engine.start(lambda line: None)
    assert loop.time() - began >= 0.05
    assert bench.engine.failure is None


async def test_a_model_without_tokenizer_is_a_config_error(tmp_path: Any) -> None:
    engine = FakeEngine(EngineConfig(str(tmp_path), "m"), build().registry.__class__(), Reports())
    with pytest.raises(EngineConfigError) as caught:
        await engine.start(lambda line: None)
    assert caught.value.setting == "model"


@pytest.mark.parametrize(
    "arguments",
    [
        {"fake_speed": 1},
        {"fake_step_ms": -1},
        {"fake_step_ms": "fast"},
        {"fake_acceptance": 2},
        {"fake_acceptance": {"ngram": "high"}},
        {"fake_die_at_call": "info"},
        {"fake_fail_prompt": 3},
        {"max_num_seqs": 0},
        {"fake_length": 1.5},
    ],
)
def test_a_bad_option_is_refused_by_name(arguments: dict[str, Any]) -> None:
    with pytest.raises(EngineConfigError, match=next(iter(arguments))):
        read_options(arguments)


def test_other_arguments_of_vllm_are_ignored() -> None:
    assert read_options({"dtype": "float32", "max_num_seqs": None, "fake_step_ms": 2}) == (
        read_options({"fake_step_ms": 2})
    )


def test_a_proposer_above_the_draft_capacity_is_refused() -> None:
    config = EngineConfig("x", "m", (ProposerSpec("ngram", "ngram", 7),), 6)
    with pytest.raises(EngineConfigError) as caught:
        FakeEngine(config, build().registry.__class__(), Reports())
    assert caught.value.setting == "proposer"


async def test_death_after_steps_fails_running_and_new_requests(start: StartBench) -> None:
    bench = await start(fake_die_after_steps=3)
    results = await asyncio.gather(
        *(run(bench, ask(f"r{i}")) for i in range(4)), return_exceptions=True
    )
    assert [type(r) for r in results] == [EngineDead] * 4
    assert "fake_die_after_steps" in str(bench.engine.failure)
    assert bench.engine.num_running == bench.sample("num_requests_running") == 0
    with pytest.raises(EngineDead):
        await run(bench, ask())


@pytest.mark.parametrize("call", ["generate", "switch"])
async def test_death_at_a_call(start: StartBench, call: str) -> None:
    bench = await start(fake_die_at_call=call)
    calls = {
        "generate": lambda: run(bench, ask()),
        "switch": lambda: bench.engine.switch(Switch(PLAIN, 1), running=True),
    }
    with pytest.raises(EngineDead):
        await calls[call]()
    assert bench.engine.failure is not None


async def test_a_dead_engine_still_lists_its_proposers(start: StartBench) -> None:
    bench = await start(fake_die_at_call="proposers")
    assert await bench.engine.proposers() == bench.engine.info.proposers
    assert bench.engine.failure is not None


async def test_a_revived_engine_serves_again(start: StartBench) -> None:
    bench = await start()
    bench.engine.die(retry_after_s=2.5)
    with pytest.raises(EngineDead) as caught:
        await run(bench, ask())
    assert caught.value.retry_after_s == 2.5
    bench.engine.revive()
    assert bench.engine.failure is None
    assert len(tokens(await run(bench, ask(max_tokens=8)))) == 8


async def test_a_failing_request_does_not_affect_its_neighbours(start: StartBench) -> None:
    bench = await start(fake_fail_prompt="poison", fake_trouble_after_tokens=2)
    bad = bench.engine.generate(ask("bad", prompt=text_prompt(bench, "some poison here")))
    good = asyncio.create_task(run(bench, ask("good", max_tokens=20)))
    seen = [await anext(bad), await anext(bad)]
    assert len(tokens(seen)) == 2
    with pytest.raises(EngineError) as caught:
        await anext(bad)
    assert not isinstance(caught.value, EngineDead)
    assert len(tokens(await good)) == 20
    assert bench.engine.failure is None
    assert bench.sample("request_success_total", finished_reason="error") == 1


async def test_a_hanging_request_ends_when_it_is_closed(start: StartBench) -> None:
    bench = await start(fake_hang_prompt="sleepy", fake_trouble_after_tokens=1)
    stuck = bench.engine.generate(ask("stuck", prompt=text_prompt(bench, "so sleepy")))
    await anext(stuck)
    waiting = asyncio.ensure_future(anext(stuck))
    assert len(tokens(await run(bench, ask("good", max_tokens=20)))) == 20
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert bench.engine.num_running == 0


async def test_a_hanging_engine_can_be_stopped(start: StartBench) -> None:
    bench = await start(fake_hang_after_steps=2)
    reading = asyncio.create_task(run(bench, ask()))
    await asyncio.sleep(0.02)
    assert not reading.done()
    await bench.engine.stop()
    with pytest.raises(EngineDead):
        await reading
    assert bench.engine.failure is None


async def test_stop_is_safe_twice_and_final(start: StartBench) -> None:
    bench = await start()
    await bench.engine.stop()
    await bench.engine.stop()
    with pytest.raises(EngineDead):
        await run(bench, ask())


async def test_die_fails_running_requests_with_its_reason(start: StartBench) -> None:
    bench = await start(fake_step_ms=5)
    reading = asyncio.create_task(run(bench, ask()))
    await asyncio.sleep(0.01)
    bench.engine.die("power cut")
    with pytest.raises(EngineDead, match="power cut"):
        await reading
    assert "power cut" in str(bench.engine.failure)
