"""`/metrics` in both formats that Prometheus requests."""

from collections.abc import Callable, Iterable

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, eventually

Parse = Callable[[str], Iterable[Metric]]


PROMETHEUS_2 = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
PROMETHEUS_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,*/*;q=0.1"


@pytest.mark.parametrize(
    ("accept", "content_type", "parse"),
    [
        ("*/*", "text/plain; version=0.0.4", plain_text),
        (PROMETHEUS_2, "application/openmetrics-text; version=1.0.0", openmetrics),
        (PROMETHEUS_3, "application/openmetrics-text; version=1.0.0", openmetrics),
    ],
)
async def test_it_shows_our_series_and_the_engines_by_their_names(
    gateway: Gateway, accept: str, content_type: str, parse: Parse
) -> None:
    await gateway.complete(max_tokens=30)
    response = await gateway.client.get("/metrics", headers={"Accept": accept})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith(content_type)
    samples = [sample for family in parse(response.text) for sample in family.samples]
    ours = sum(s.value for s in samples if s.name == "specgate_spec_decode_draft_tokens_total")
    engines = sum(s.value for s in samples if s.name == "vllm:spec_decode_num_draft_tokens_total")
    assert ours == engines > 0


async def engine_gauges(gateway: Gateway) -> tuple[float | None, float | None]:
    """Whether the engine serves, and whether it was given up, as `/metrics` tells it."""
    families = plain_text((await gateway.client.get("/metrics")).text)
    samples = {s.name: s.value for family in families for s in family.samples}
    return samples.get("specgate_engine_up"), samples.get("specgate_engine_given_up")


async def test_the_engines_life_is_shown(start: StartGateway) -> None:
    loading = await start(wait=False, engine_args={"fake_start_s": 0.2})
    assert await engine_gauges(loading) == (0, 0)
    await loading.state.start_ended.wait()
    assert await engine_gauges(loading) == (1, 0)


async def test_an_engine_that_is_not_replaced_is_shown(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_die_after_steps": 3})
    assert await engine_gauges(gateway) == (1, 0)
    assert (await gateway.complete(max_tokens=100)).status_code == 503
    failure = gateway.engine.failure
    assert failure is not None
    assert failure.retry_after_s is None
    assert await engine_gauges(gateway) == (0, 1)
    # A real engine is replaced: it is down, and not given up.
    gateway.engine.revive()
    gateway.engine.die(retry_after_s=5.0)
    assert await engine_gauges(gateway) == (0, 0)


async def test_a_failed_start_is_shown(start: StartGateway) -> None:
    gateway = await start(wait=False, engine_args={"fake_fail_start": "no memory"})
    await gateway.state.start_ended.wait()
    assert await engine_gauges(gateway) == (0, 1)


async def test_the_tasks_of_a_request_are_counted_while_it_runs(start: StartGateway) -> None:
    async def tasks() -> float:
        await gateway.client.get("/metrics")
        return gateway.sample("specgate_event_loop_tasks") or 0.0

    gateway = await start(engine_args={"fake_hang_prompt": "hang"})
    before = await tasks()
    exchange = gateway.exchange("/v1/completions", {"prompt": "hang", "stream": True})
    task = exchange.begin()
    await eventually(lambda: gateway.engine.num_running == 1)
    assert await tasks() > before
    exchange.leave()
    await task
    # A task of the server's own can run at a scrape.
    least = await tasks()
    for _ in range(100):
        least = min(least, await tasks())
    assert least <= before


@pytest.mark.parametrize(("accept", "parse"), [("*/*", plain_text), (PROMETHEUS_3, openmetrics)])
async def test_it_shows_only_the_series_that_are_asked_for(
    gateway: Gateway, accept: str, parse: Parse
) -> None:
    await gateway.complete(max_tokens=30)
    names = ["specgate_spec_decode_draft_tokens_total", "vllm:num_requests_running", "no_such"]
    response = await gateway.client.get(
        "/metrics", params={"name[]": names}, headers={"Accept": accept}
    )
    samples = [sample for family in parse(response.text) for sample in family.samples]
    assert {sample.name for sample in samples} == set(names[:2])
    assert sum(sample.value for sample in samples) > 0
