"""The log of slow requests."""

from dataclasses import replace
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from server.telemetry.generation import Failure, Generation, Timings
from server.telemetry.slow_log import log_if_slow
from tests.server.conftest import StartGateway
from tests.server.gateway import eventually
from tests.server.telemetry.generations import GENERATION


def slow_lines(generation: Generation, threshold_s: float) -> list[Any]:
    with capture_logs() as logs:
        log_if_slow(generation, threshold_s)
    return logs


def test_a_line_has_times_and_figures() -> None:
    assert slow_lines(GENERATION, 4.0) == [
        {
            "event": "slow_request",
            "log_level": "warning",
            "id": "chatcmpl-1",
            "operation": "chat",
            "model": "m",
            "api_key": "team-a",
            "stream": True,
            "choices": 1,
            "prepare_s": 0.25,
            "queue_s": 1.25,
            "first_token_s": 2.0,
            "total_s": 4.0,
            "prompt_tokens": 100,
            "cached_tokens": 64,
            "generated_tokens": 30,
            "spec_method": "auto",
            "selected_by": "active",
            "proposers": ["ngram", "draft"],
            "draft_tokens": 28,
            "accepted_tokens": 15,
            "error": None,
        }
    ]


@pytest.mark.parametrize("threshold_s", [4.001, 0.0])
def test_faster_requests_are_not_logged_and_0_logs_none(threshold_s: float) -> None:
    assert slow_lines(GENERATION, threshold_s) == []


def test_a_request_that_never_left_the_queue_waited_to_its_end() -> None:
    refused = replace(
        GENERATION,
        timings=Timings(0.25, None, None, 9.0),
        selected=None,
        failure=Failure("stopping", 503),
    )
    (line,) = slow_lines(refused, 1.0)
    assert (line["queue_s"], line["first_token_s"]) == (8.75, None)
    assert (line["error"], line["spec_method"]) == ("stopping", None)


def test_drafts_that_are_not_known_are_not_0() -> None:
    (line,) = slow_lines(replace(GENERATION, drafts=None), 1.0)
    assert (line["draft_tokens"], line["accepted_tokens"], line["proposers"]) == (None,) * 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_slow_request_is_logged_with_its_id_and_no_content(
    start: StartGateway, stream: bool
) -> None:
    gateway = await start(slow_request_s=0.02, engine_args={"fake_step_ms": 10})
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
        body = {"prompt": "secret", "max_tokens": 9, "stream": stream}
        await gateway.post("/v1/completions", body, headers={"x-request-id": "r-1"})
    (line,) = (line for line in logs if line["event"] == "slow_request")
    assert (line["request_id"], line["generated_tokens"]) == ("r-1", 9)
    assert 0 < line["prepare_s"] < line["first_token_s"] < line["total_s"]
    assert line["draft_tokens"] > 0
    assert "secret" not in str(line)


async def test_by_default_none_is_logged(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 20})
    with capture_logs() as logs:
        await gateway.chat(max_tokens=3)
    assert [line["event"] for line in logs] == ["request"]


async def test_a_client_that_leaves_while_a_drain_holds_it_is_logged(start: StartGateway) -> None:
    gateway = await start(slow_request_s=0.001, engine_args={"fake_step_ms": 2})
    long = {"prompt": "a", "max_tokens": 900, "ignore_eos": True}
    running = gateway.exchange("/v1/completions", long)
    first = running.begin()
    await eventually(lambda: gateway.engine.num_running == 1)
    body = {"speculative_model": "ngram", "mode": "drain", "timeout_s": 30}
    switch = gateway.exchange("/v1/switch_spec_method", body)
    switching = switch.begin()
    await eventually(lambda: gateway.runtime.switcher.drain is not None)
    held = gateway.exchange("/v1/completions", long)
    waiting = held.begin()
    await eventually(lambda: gateway.runtime.switcher.drain.held == 1)  # type: ignore[union-attr]
    with capture_logs() as logs:
        held.leave()
        await waiting
    (line,) = (line for line in logs if line["event"] == "slow_request")
    assert (line["error"], line["id"]) == ("client_disconnected", None)
    assert line["queue_s"] > 0
    running.leave()
    switch.leave()
    await first
    await switching
