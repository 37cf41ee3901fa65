"""Injected failures, and the engine's start, death and stop."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from engine_adapter.fake.engine import FakeEngine
from engine_adapter.fake.options import read_options
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.seam.config import EngineConfig, HangPolicy
from engine_adapter.seam.errors import (
    EngineConfigError,
    EngineDead,
    EngineError,
    EngineNotReady,
    EngineStartError,
)
from engine_adapter.seam.types import PLAIN, SpecMethod, Switch
from tests.engine_adapter.fake.conftest import StartEngine
from tests.engine_adapter.fake.harness import FakeHarness, Reports, build, make_request, run, tokens
from tests.server.gateway import eventually


def text_prompt(harness: FakeHarness, text: str) -> tuple[int, ...]:
    """The text's tokens."""
    assert harness.engine._vocabulary is not None
    return tuple(harness.engine._vocabulary.tokenizer.encode(text).ids)


async def test_a_revival_takes_the_place_of_the_planned_restart(start: StartEngine) -> None:
    harness = await start(fake_restart_s=0.02)
    harness.engine.die()
    harness.engine.revive()
    await asyncio.sleep(0.1)
    loops = [task for task in asyncio.all_tasks() if task.get_name() == "fake-engine"]
    assert len(loops) == 1
    assert harness.reports.restarts == []
    assert tokens(await run(harness, make_request(max_tokens=3)))
    harness.engine.die()
    await eventually(lambda: bool(harness.reports.restarts))
    assert harness.reports.restarts == [True]
    assert harness.engine.failure is None


async def test_nothing_is_served_before_the_start() -> None:
    harness = build()
    with pytest.raises(EngineNotReady):
        _ = harness.engine.info
    with pytest.raises(EngineNotReady):
        await run(harness, make_request())
    with pytest.raises(EngineNotReady):
        await harness.engine.switch(Switch(PLAIN, 1), running=True)
    await harness.engine.stop()


async def test_info_describes_the_started_engine(start: StartEngine) -> None:
    info = (await start()).engine.info
    assert info.engine == "fake"
    assert info.max_model_len == 2048
    assert info.vocab_size == 2048
    assert info.max_speculative_tokens == 5
    assert [p.name for p in info.proposers] == ["ngram", "draft", "prediction"]
    assert (await start(max_model_len=100)).engine.info.max_model_len == 100


async def test_a_start_can_fail_and_be_slow() -> None:
    loop = asyncio.get_running_loop()
    harness = build(fake_fail_start="no memory", fake_start_s=0.05)
    began = loop.time()
    with pytest.raises(EngineStartError, match="no memory"):
        await harness.engine.start(lambda line: None)
    assert loop.time() - began >= 0.05
    assert harness.engine.failure is None


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
        {"fake_fail_switch": True},
        {"fake_restart_s": -1},
        {"fake_slow_step_every": 0.5},
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


async def test_death_after_steps_fails_running_and_new_requests(start: StartEngine) -> None:
    harness = await start(fake_die_after_steps=3)
    results = await asyncio.gather(
        *(run(harness, make_request(f"r{i}")) for i in range(4)), return_exceptions=True
    )
    assert [type(r) for r in results] == [EngineDead] * 4
    assert "fake_die_after_steps" in str(harness.engine.failure)
    assert harness.engine.num_running == harness.sample("num_requests_running") == 0
    with pytest.raises(EngineDead):
        await run(harness, make_request())


async def test_a_death_and_a_restart_are_logged_as_those_of_a_real_engine(
    start: StartEngine,
) -> None:
    harness = await start(fake_restart_s=0.02)
    with capture_logs() as lines:
        harness.engine.die("killed")
        await eventually(lambda: len(lines) == 2)
    assert lines == [
        {
            "event": "engine_died",
            "log_level": "error",
            "cause": "the fake engine: killed",
            "then": "replaced in 0.02 s",
        },
        {"event": "engine_restarted", "log_level": "warning", "took_s": 0.0},
    ]
    final = await start()
    with capture_logs() as lines:
        final.engine.die("killed")
        final.engine.die("killed again")
    assert [line["then"][:8] for line in lines] == ["given up"]


@pytest.mark.parametrize("call", ["generate", "switch"])
async def test_death_at_a_call(start: StartEngine, call: str) -> None:
    harness = await start(fake_die_at_call=call)
    calls = {
        "generate": lambda: run(harness, make_request()),
        "switch": lambda: harness.engine.switch(Switch(PLAIN, 1), running=True),
    }
    with pytest.raises(EngineDead):
        await calls[call]()
    assert harness.engine.failure is not None


async def test_a_dead_engine_still_lists_its_proposers(start: StartEngine) -> None:
    harness = await start(fake_die_at_call="proposers")
    assert await harness.engine.proposers() == harness.engine.info.proposers
    assert harness.engine.failure is not None


async def test_a_revived_engine_serves_again(start: StartEngine) -> None:
    harness = await start()
    harness.engine.die(retry_after_s=2.5)
    with pytest.raises(EngineDead) as caught:
        await run(harness, make_request())
    assert caught.value.retry_after_s == 2.5
    harness.engine.revive()
    assert harness.engine.failure is None
    assert len(tokens(await run(harness, make_request(max_tokens=8)))) == 8


async def test_a_failing_request_does_not_affect_its_neighbours(start: StartEngine) -> None:
    harness = await start(fake_fail_prompt="poison", fake_trouble_after_tokens=2)
    bad = harness.engine.generate(
        make_request("bad", prompt=text_prompt(harness, "some poison here"))
    )
    good = asyncio.create_task(run(harness, make_request("good", max_tokens=20)))
    seen = [await anext(bad), await anext(bad)]
    assert len(tokens(seen)) == 2
    with pytest.raises(EngineError) as caught:
        await anext(bad)
    assert not isinstance(caught.value, EngineDead)
    assert len(tokens(await good)) == 20
    assert harness.engine.failure is None
    assert harness.sample("request_success_total", finished_reason="error") == 1


async def test_a_hanging_request_ends_when_it_is_closed(start: StartEngine) -> None:
    harness = await start(fake_hang_prompt="sleepy", fake_trouble_after_tokens=1)
    stuck = harness.engine.generate(make_request("stuck", prompt=text_prompt(harness, "so sleepy")))
    await anext(stuck)
    waiting = asyncio.ensure_future(anext(stuck))
    assert len(tokens(await run(harness, make_request("good", max_tokens=20)))) == 20
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert harness.engine.num_running == 0


async def test_a_hanging_engine_can_be_stopped(start: StartEngine) -> None:
    harness = await start(fake_hang_after_steps=2)
    reading = asyncio.create_task(run(harness, make_request()))
    await asyncio.sleep(0.02)
    assert not reading.done()
    await harness.engine.stop()
    with pytest.raises(EngineDead):
        await reading
    assert harness.engine.failure is None


async def test_stop_is_safe_twice_and_final(start: StartEngine) -> None:
    harness = await start()
    await harness.engine.stop()
    await harness.engine.stop()
    with pytest.raises(EngineDead):
        await run(harness, make_request())


async def test_die_fails_running_requests_with_its_reason(start: StartEngine) -> None:
    harness = await start(fake_step_ms=5)
    reading = asyncio.create_task(run(harness, make_request()))
    await asyncio.sleep(0.01)
    harness.engine.die("power cut")
    with pytest.raises(EngineDead, match="power cut"):
        await reading
    assert "power cut" in str(harness.engine.failure)


async def test_an_engine_that_hangs_dies_of_it(start: StartEngine) -> None:
    harness = await start(hang=HangPolicy(idle_s=0.02), fake_hang_after_steps=2)
    with pytest.raises(EngineDead, match=r"did not answer for 0\.02 s"):
        await run(harness, make_request())
    assert "did not answer" in str(harness.engine.failure)


async def test_a_switch_waits_for_a_step_that_hangs(start: StartEngine) -> None:
    harness = await start(hang=HangPolicy(idle_s=1.0), fake_hang_after_steps=1)
    reading = asyncio.create_task(run(harness, make_request()))
    await eventually(lambda: harness.engine._stepper.hangs)
    await harness.engine.switch(Switch(PLAIN, 1), running=False)
    with pytest.raises(EngineDead):
        await harness.engine.switch(Switch(PLAIN, 2), running=True)
    with pytest.raises(EngineDead):
        await reading


async def test_a_dead_engine_serves_again_after_its_restart(start: StartEngine) -> None:
    harness = await start(fake_restart_s=0.02, fake_die_after_steps=5)
    for life in (1, 2, 3):
        with pytest.raises(EngineDead) as caught:
            await run(harness, make_request(f"{life}", max_tokens=100, ignore_eos=True))
        assert caught.value.retry_after_s is not None
        assert caught.value.retry_after_s <= 0.02
        await eventually(lambda: harness.engine.failure is None)
        assert harness.reports.restarts == [True] * life
        assert len(tokens(await run(harness, make_request(f"short-{life}", max_tokens=2)))) == 2


async def test_a_stopped_engine_does_not_restart(start: StartEngine) -> None:
    harness = await start(fake_restart_s=0.01)
    harness.engine.die()
    await harness.engine.stop()
    await asyncio.sleep(0.03)
    assert harness.engine.failure is not None
    assert harness.reports.restarts == []


async def test_every_nth_step_is_slow(start: StartEngine) -> None:
    harness = await start(fake_step_ms=0, fake_slow_step_every=3, fake_slow_step_ms=40)
    await run(harness, make_request(max_tokens=9, ignore_eos=True))
    seconds = [report.seconds for report in harness.reports.steps]
    assert len(seconds) == 9
    slow, quick = seconds[2::3], [s for i, s in enumerate(seconds) if i % 3 != 2]
    assert min(slow) >= 0.04
    assert sorted(quick)[len(quick) // 2] < 0.04


async def test_a_switch_that_fails_changes_nothing(start: StartEngine) -> None:
    harness = await start(fake_step_ms=2, fake_fail_switch="no room")
    reading = asyncio.create_task(run(harness, make_request(max_tokens=20, ignore_eos=True)))
    await asyncio.sleep(0.01)
    with pytest.raises(EngineError, match="no room") as caught:
        await harness.engine.switch(Switch(SpecMethod("ngram", 3), 1), running=True)
    assert not isinstance(caught.value, EngineDead)
    assert len(tokens(await reading)) == 20
    assert all(not report.draft_seconds for report in harness.reports.steps)
