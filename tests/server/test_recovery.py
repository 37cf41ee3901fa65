"""An engine that dies or hangs again and again under load: whole answers or honest errors."""

import asyncio
from typing import Any

import pytest

from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, events, eventually

LIVES = 20
CLIENTS = 4
TOKENS = 12


class Load:
    """Clients that send without a pause; half of them streams."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.whole = 0
        self.lost = 0
        self.refused = 0
        self.stopping = False

    async def run(self, number: int) -> None:
        """One client."""
        while not self.stopping:
            stream = bool(number % 2)
            response = await self._gateway.complete(
                f"x = {number}", max_tokens=TOKENS, ignore_eos=True, stream=stream
            )
            if response.status_code == 503:
                self._check(response.json())
                assert int(response.headers["retry-after"]) >= 1
                self.refused += 1
                await asyncio.sleep(0.01)
                continue
            assert response.status_code == 200, response.text
            self._count(events(response) if stream else [response.json()])

    def _count(self, bodies: list[dict[str, Any]]) -> None:
        reasons = [choice["finish_reason"] for b in bodies for choice in b.get("choices", ())]
        if "error" in bodies[-1]:
            self._check(bodies[-1])
            assert not any(reasons)
            self.lost += 1
        else:
            assert reasons[-1] == "length"
            self.whole += 1

    def _check(self, body: dict[str, Any]) -> None:
        assert body["error"]["code"] == "engine_dead"
        assert "try" not in body["error"]["message"]


@pytest.mark.parametrize("fault", ["fake_die_after_steps", "fake_hang_after_steps"])
async def test_twenty_faults_under_load_lose_no_request_silently(
    start: StartGateway, fault: str
) -> None:
    gateway = await start(
        engine_hang_timeout_s=0.03,
        engine_args={"fake_step_ms": 0, fault: 20, "fake_restart_s": 0.03},
    )

    def restarts() -> float:
        labels = {"outcome": "restarted"}
        return gateway.sample("specgate_engine_restarts_total", **labels) or 0.0

    assert (await gateway.post("/v1/switch_spec_method", {"proposer": "ngram"})).status_code == 200
    load = Load(gateway)
    clients = [asyncio.create_task(load.run(number)) for number in range(CLIENTS)]
    await eventually(lambda: restarts() >= LIVES, 120)
    load.stopping = True
    await asyncio.gather(*clients)
    assert load.whole > LIVES
    assert load.lost + load.refused >= LIVES
    await eventually(lambda: gateway.engine.failure is None, 20)
    shown = (await gateway.client.get("/v1/spec_method")).json()
    assert (shown["spec_method"], shown["generation"]) == ("ngram", 1)
    assert shown["in_flight"] == {}
    assert gateway.engine.num_running == gateway.engine.num_waiting == 0


async def test_a_hang_is_a_death_for_probes_switches_and_requests(start: StartGateway) -> None:
    gateway = await start(engine_hang_timeout_s=1.5, engine_args={"fake_hang_after_steps": 3})
    reading = asyncio.create_task(gateway.complete(max_tokens=50, ignore_eos=True))
    await eventually(lambda: gateway.engine._stepper.hangs)
    assert (await gateway.client.get("/ready")).status_code == 200
    hanging = asyncio.create_task(
        gateway.post("/v1/switch_spec_method", {"proposer": "ngram", "mode": "immediate"})
    )
    await eventually(lambda: gateway.runtime.switcher.busy)
    second = await gateway.post("/v1/switch_spec_method", {"proposer": "suffix"})
    assert (second.status_code, second.json()["error"]["code"]) == (409, "switch_in_progress")
    for response in (await asyncio.wait_for(hanging, 60), await asyncio.wait_for(reading, 60)):
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
        assert "did not answer for 1.5 s" in response.json()["error"]["message"]
    assert not gateway.runtime.switcher.busy
    third = await gateway.post("/v1/switch_spec_method", {"proposer": "suffix"})
    assert (third.status_code, third.json()["error"]["code"]) == (503, "engine_dead")
    for path in ("/ready", "/health"):
        assert (await gateway.client.get(path)).status_code == 503


async def test_slow_steps_are_not_a_fault(start: StartGateway) -> None:
    gateway = await start(
        engine_hang_timeout_s=0.02,
        engine_args={"fake_step_ms": 1, "fake_slow_step_every": 4, "fake_slow_step_ms": 60},
    )
    response = await gateway.complete(
        max_tokens=12, ignore_eos=True, spec_decode={"proposer": None}
    )
    assert response.status_code == 200
    assert gateway.engine.failure is None
