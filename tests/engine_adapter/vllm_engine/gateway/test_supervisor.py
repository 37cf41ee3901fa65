"""A child that dies is replaced, with growing delays, up to the limit of the policy."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from engine_adapter.seam.config import RestartPolicy
from engine_adapter.seam.errors import EngineDead, EngineNotReady, EngineStartError
from engine_adapter.vllm_engine.gateway import supervisor as supervisor_module
from engine_adapter.vllm_engine.gateway.supervisor import Supervisor

QUICK = RestartPolicy(first_delay_s=0.01, max_delay_s=0.04, limit=3, window_s=60)


class Child:
    """A process that dies when `death` is set."""

    def __init__(self, fails: Exception | None = None, start_s: float = 0.0) -> None:
        self._fails = fails
        self._start_s = start_s
        self.death: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.started = False
        self.stopped = False

    @property
    def alive(self) -> bool:
        return self.started and not self.death.done()

    async def start(self, on_progress: Callable[[str], None]) -> None:
        on_progress("loading")
        await asyncio.sleep(self._start_s)
        if self._fails is not None:
            raise self._fails
        self.started = True

    async def died(self) -> str:
        return await asyncio.shield(self.death)

    async def stop(self) -> None:
        self.stopped = True


@dataclass
class Nursery:
    """Creates children, and records their order and their use."""

    plans: list[dict[str, Any]] = field(default_factory=list)
    made: list[Child] = field(default_factory=list)
    adopted: list[Child] = field(default_factory=list)
    restarts: list[bool] = field(default_factory=list)

    def make(self) -> Child:
        plan = self.plans.pop(0) if self.plans else {}
        self.made.append(Child(**plan))
        return self.made[-1]

    async def adopt(self, child: Child) -> None:
        assert child.alive
        self.adopted.append(child)

    def supervisor(self, policy: RestartPolicy = QUICK) -> Supervisor[Child]:
        return Supervisor(self.make, self.adopt, policy, self.restarts.append)


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        await asyncio.sleep(0.002)


async def test_a_child_that_dies_is_replaced() -> None:
    nursery = Nursery()
    supervisor = nursery.supervisor()
    await supervisor.start(lambda line: None)
    (first,) = nursery.made
    assert supervisor.child is first
    assert supervisor.failure is None
    with capture_logs() as lines:
        first.death.set_result("was killed by signal 9 (SIGKILL)")
        await until(lambda: len(nursery.adopted) == 2 and supervisor.failure is None)
    assert supervisor.child is nursery.made[1]
    assert first.stopped
    assert nursery.restarts == [True]
    died, loading, restarted = lines
    assert died["event"] == "engine_died"
    assert died["cause"] == "the engine process was killed by signal 9 (SIGKILL)"
    assert died["then"] == "replaced in 0.01 s, attempt 1 of 3 within 60 s"
    assert (loading["event"], loading["stage"]) == ("engine_loading", "loading")
    assert restarted["event"] == "engine_restarted"
    await supervisor.stop()
    assert nursery.made[1].stopped


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The supervisor's clock, which only the test moves."""
    clock = [1000.0]
    monkeypatch.setattr(supervisor_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    return clock


async def test_a_death_shows_before_the_watching_task_has_run(now: list[float]) -> None:
    nursery = Nursery()
    supervisor = nursery.supervisor()
    await supervisor.start(lambda line: None)
    nursery.made[0].death.set_result("crashed")
    with pytest.raises(EngineDead) as caught:
        _ = supervisor.child
    assert str(caught.value) == "The engine process has died; it is being replaced."
    assert caught.value.retry_after_s == pytest.approx(QUICK.first_delay_s)
    await supervisor.stop()


async def test_retry_after_counts_down_and_includes_the_start(now: list[float]) -> None:
    nursery = Nursery()
    supervisor = nursery.supervisor(RestartPolicy(first_delay_s=60, max_delay_s=60, limit=3))

    def start_takes_20_s(line: str) -> None:
        now[0] += 20.0

    await supervisor.start(start_takes_20_s)
    nursery.made[0].death.set_result("crashed")
    await until(lambda: nursery.made[0].stopped)
    failure = supervisor.failure
    assert failure is not None
    assert str(failure) == "The engine process crashed; it is being replaced."
    for passed_s, left_s in ((0, 80), (60, 20), (15, 5), (30, 0)):
        now[0] += passed_s
        failure = supervisor.failure
        assert failure is not None
        assert failure.retry_after_s == pytest.approx(left_s)
    await supervisor.stop()


async def test_delays_double_up_to_the_maximum() -> None:
    broken = {"fails": EngineStartError("no memory")}
    nursery = Nursery([{}, *[broken] * 4])
    policy = RestartPolicy(first_delay_s=0.01, max_delay_s=0.04, limit=5, window_s=60)
    supervisor = nursery.supervisor(policy)
    await supervisor.start(lambda line: None)
    with capture_logs() as lines:
        nursery.made[0].death.set_result("crashed")
        await until(lambda: nursery.restarts[-1:] == [True])
    said = [line["then"].split(",")[0] for line in lines if "then" in line]
    assert said == [f"replaced in {s} s" for s in ("0.01", "0.02", "0.04", "0.04", "0.04")]
    causes = [line["cause"] for line in lines if line["event"] == "engine_restart_failed"]
    assert causes == ["no memory"] * 4
    assert nursery.restarts == [False] * 4 + [True]
    assert all(child.stopped for child in nursery.made[:-1])
    await supervisor.stop()


@pytest.mark.parametrize("starts", [True, False], ids=["crash loop", "never starts"])
async def test_a_child_is_not_replaced_beyond_the_limit(starts: bool) -> None:
    broken: dict[str, Any] = {} if starts else {"fails": EngineStartError("no memory")}
    nursery = Nursery([{}, *[broken] * 9])
    supervisor = nursery.supervisor()
    await supervisor.start(lambda line: None)
    with capture_logs() as lines:
        for i in range(QUICK.limit + 1 if starts else 1):
            await until(lambda i=i: len(nursery.adopted) == i + 1)  # type: ignore[misc]
            nursery.made[-1].death.set_result("crashed")
        await until(lambda: any("given up" in line.get("then", "") for line in lines))
    assert "restart the server" in lines[-1]["then"]
    assert nursery.restarts == [starts] * QUICK.limit
    failure = supervisor.failure
    assert failure is not None
    assert failure.retry_after_s is None
    assert str(failure) == (
        "The engine process crashed; it is no longer replaced, and the server must be restarted."
    )
    await asyncio.sleep(0.1)
    assert len(nursery.made) == QUICK.limit + 1
    await supervisor.stop()


async def test_attempts_before_the_window_do_not_count() -> None:
    nursery = Nursery()
    supervisor = nursery.supervisor(RestartPolicy(0.01, 0.01, limit=1, window_s=0.1))
    await supervisor.start(lambda line: None)
    for i in range(3):
        nursery.made[-1].death.set_result("crashed")
        await until(lambda i=i: len(nursery.adopted) == i + 2)  # type: ignore[misc]
        await asyncio.sleep(0.15)
    assert supervisor.failure is None
    await supervisor.stop()


async def test_with_a_limit_of_0_nothing_is_replaced() -> None:
    nursery = Nursery()
    supervisor = nursery.supervisor(RestartPolicy(limit=0))
    await supervisor.start(lambda line: None)
    nursery.made[0].death.set_result("crashed")
    assert supervisor.failure is not None
    assert supervisor.failure.retry_after_s is None
    await supervisor.stop()


async def test_a_failed_first_start_is_raised_and_not_repeated() -> None:
    nursery = Nursery([{"fails": EngineStartError("no memory")}])
    supervisor = nursery.supervisor()
    with pytest.raises(EngineStartError, match="no memory"):
        await supervisor.start(lambda line: None)
    assert nursery.made[0].stopped
    await asyncio.sleep(0.05)
    assert len(nursery.made) == 1
    with pytest.raises(EngineNotReady):
        _ = supervisor.child


async def test_a_child_that_dies_while_it_is_adopted_fails_the_start_with_its_cause() -> None:
    nursery = Nursery()

    async def adopt(child: Child) -> None:
        child.death.set_result("was killed by signal 4 (SIGILL)")
        raise EngineDead("the engine died before it answered")

    supervisor = Supervisor(nursery.make, adopt, QUICK, nursery.restarts.append)
    with pytest.raises(EngineStartError) as caught:
        await supervisor.start(lambda line: None)
    assert str(caught.value) == (
        "The engine process was killed by signal 4 (SIGILL), before it served."
    )
    assert nursery.made[0].stopped


async def test_an_unexpected_error_in_a_restart_is_logged_and_retried() -> None:
    nursery = Nursery([{}, {"fails": KeyError("oops")}])
    supervisor = nursery.supervisor()
    await supervisor.start(lambda line: None)
    with capture_logs() as lines:
        nursery.made[0].death.set_result("crashed")
        await until(lambda: nursery.restarts == [False, True])
    (failed,) = [line for line in lines if line["event"] == "engine_restart_failed"]
    assert isinstance(failed["exc_info"], KeyError)
    await supervisor.stop()


@pytest.mark.parametrize("when", ["waiting", "starting"])
async def test_a_stop_ends_a_replacement_at_once(when: str) -> None:
    nursery = Nursery([{}, {"start_s": 60}])
    delay_s = 60 if when == "waiting" else 0.001
    supervisor = nursery.supervisor(RestartPolicy(delay_s, 60, limit=3))
    await supervisor.start(lambda line: None)
    nursery.made[0].death.set_result("crashed")
    await until(lambda: nursery.made[0].stopped)
    if when == "starting":
        await until(lambda: len(nursery.made) == 2)
    async with asyncio.timeout(30):
        await supervisor.stop()
        await supervisor.stop()
    assert all(child.stopped for child in nursery.made)
    assert supervisor.failure is None
    with pytest.raises(EngineNotReady):
        _ = supervisor.child


async def test_an_error_in_the_supervisor_announces_no_replacement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(child: Child) -> None:
        raise OSError("cannot be stopped")

    nursery = Nursery()
    supervisor = nursery.supervisor()
    await supervisor.start(lambda line: None)
    monkeypatch.setattr(Child, "stop", broken)
    with capture_logs() as lines:
        nursery.made[0].death.set_result("crashed")
        await until(lambda: any(line["event"] == "engine_supervisor_failed" for line in lines))
    assert supervisor.failure is not None
    assert supervisor.failure.retry_after_s is None
    monkeypatch.undo()
    await supervisor.stop()
