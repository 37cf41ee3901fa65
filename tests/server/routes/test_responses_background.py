"""Responses that run in the background: read, streamed, resumed, cancelled, and stopped."""

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest

from engine_adapter.seam.errors import InvalidRequest
from server.http.headers import IGNORED_FIELDS, UNENFORCED_KEYWORDS
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, eventually
from tests.server.response_events import checked, checked_events, kinds, text_of
from tests.server.routes.test_constraint_check import Check
from tests.server.routes.test_responses_stored import KEYS, PATH, bearer, refused
from tests.server.threaded import ThreadedServer

BODY: dict[str, Any] = {"input": "Hello", "background": True, "max_output_tokens": 12}
LONG = {**BODY, "max_output_tokens": 1000}
SLOW = {"fake_step_ms": 20, "fake_length": 1000}
ENDED = ("completed", "incomplete", "failed", "cancelled")


async def begun(gateway: Gateway, body: dict[str, Any] = BODY, key: str = "") -> dict[str, Any]:
    """The response as its request gets it."""
    response = await gateway.post(PATH, body, headers=bearer(key) if key else {})
    assert response.status_code == 200, response.text
    return checked(response.json())


async def read(gateway: Gateway, response_id: str, key: str = "") -> dict[str, Any]:
    response = await gateway.client.get(f"{PATH}/{response_id}", headers=bearer(key) if key else {})
    assert response.status_code == 200, response.text
    return checked(response.json())


async def ended(gateway: Gateway, response_id: str) -> dict[str, Any]:
    """The response once it has ended."""
    store = gateway.runtime.responses
    await eventually(lambda: all(run.id != response_id for run in store.all_running()))
    response = await read(gateway, response_id)
    assert response["status"] in ENDED
    return response


async def replayed(gateway: Gateway, response_id: str, **query: Any) -> httpx.Response:
    params = {"stream": "true", **query}
    return await gateway.client.get(f"{PATH}/{response_id}", params=params)


async def test_it_is_the_response_that_a_connection_would_get(gateway: Gateway) -> None:
    first = await begun(gateway, {**BODY, "temperature": 0})
    assert (first["status"], first["output"], first["background"]) in (
        ("queued", [], True),
        ("in_progress", [], True),
    )
    last = await ended(gateway, first["id"])
    whole = (await gateway.post(PATH, {**BODY, "temperature": 0, "background": False})).json()
    assert (last["status"], text_of(last)) == (whole["status"], text_of(whole))
    assert last["metrics"].keys() == whole["metrics"].keys()
    assert (last["id"], last["created_at"]) == (first["id"], first["created_at"])
    items = (await gateway.client.get(f"{PATH}/{last['id']}/input_items")).json()["data"]
    assert items[0]["content"][0]["text"] == "Hello"
    assert len(gateway.runtime.responses) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_not_honoured_is_named_at_once(gateway: Gateway, stream: bool) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    form = {"type": "json_schema", "name": "a", "schema": schema}
    response = await gateway.post(
        PATH, {**BODY, "text": {"format": form}, "unknown": 1, "stream": stream}
    )
    assert response.headers[IGNORED_FIELDS] == "unknown"
    assert response.headers[UNENFORCED_KEYWORDS] == "uniqueItems"


async def test_its_status_follows_the_queue(start: StartGateway) -> None:
    gateway = await start(max_engine_sequences=1, engine_args=SLOW)
    running = await begun(gateway, LONG)
    waiting = await begun(gateway, LONG)
    assert (await read(gateway, running["id"]))["status"] == "in_progress"
    assert (await read(gateway, waiting["id"]))["status"] == waiting["status"] == "queued"
    error = (await gateway.post(PATH, {"input": "a", "previous_response_id": running["id"]})).json()
    assert "in_progress" in error["error"]["message"]
    await gateway.client.delete(f"{PATH}/{running['id']}")
    await refused(gateway, "GET", f"{PATH}/{running['id']}", 404)
    await eventually(lambda: gateway.engine.num_running == 1)
    assert (await read(gateway, waiting["id"]))["status"] == "in_progress"


async def test_a_full_queue_refuses_it_at_once(start: StartGateway) -> None:
    gateway = await start(max_engine_sequences=1, max_queued_requests=0, engine_args=SLOW)
    await begun(gateway, LONG)
    response = await gateway.post(PATH, LONG)
    assert (response.status_code, response.json()["error"]["code"]) == (429, "server_overloaded")
    assert gateway.runtime.responses.num_running == 1


async def test_it_counts_for_its_key_until_it_ends(start: StartGateway) -> None:
    gateway = await start(**KEYS, max_key_requests=1, engine_args=SLOW)
    first = await begun(gateway, LONG, "one")
    response = await gateway.post(PATH, LONG, headers=bearer("one"))
    assert response.json()["error"]["code"] == "concurrency_limit_exceeded"
    await begun(gateway, LONG, "two")
    cancelled = f"{PATH}/{first['id']}/cancel"
    assert (await gateway.client.post(cancelled, headers=bearer("one"))).status_code == 200
    await begun(gateway, LONG, "one")


async def test_only_its_key_can_read_or_cancel_it(start: StartGateway) -> None:
    gateway = await start(**KEYS, admin_key=("admin",), engine_args=SLOW)
    path = f"{PATH}/{(await begun(gateway, {**LONG, 'stream': False}, 'one'))['id']}"
    for key in ("two", "admin"):
        for method, where in (("GET", path), ("DELETE", path), ("POST", f"{path}/cancel")):
            await refused(gateway, method, where, 404, headers=bearer(key))
        await refused(gateway, "GET", path, 404, headers=bearer(key), params={"stream": "true"})
    assert (await read(gateway, path.rpartition("/")[2], "one"))["status"] == "in_progress"


async def test_a_cancelled_one_keeps_what_it_has(start: StartGateway) -> None:
    gateway = await start(engine_args=SLOW)
    first = await begun(gateway, LONG)
    await eventually(lambda: gateway.engine.num_running == 1)
    await asyncio.sleep(0.1)
    path = f"{PATH}/{first['id']}"
    cancelled = checked((await gateway.client.post(f"{path}/cancel")).json())
    assert (cancelled["status"], cancelled["error"]) == ("cancelled", None)
    assert text_of(cancelled)
    await eventually(lambda: gateway.engine.num_running == 0)
    assert (await gateway.client.post(f"{path}/cancel")).json() == cancelled
    assert await read(gateway, first["id"]) == cancelled
    body = {"input": "a", "previous_response_id": first["id"]}
    assert "cancelled" in (await gateway.post(PATH, body)).json()["error"]["message"]


async def test_a_cancelled_stream_says_so(start: StartGateway) -> None:
    gateway = await start(engine_args=SLOW)
    stream = asyncio.create_task(gateway.post(PATH, {**LONG, "stream": True}))
    await eventually(lambda: gateway.runtime.responses.num_running == 1)
    await eventually(lambda: gateway.engine.num_running == 1)
    (run,) = gateway.runtime.responses.all_running()
    await gateway.client.post(f"{PATH}/{run.id}/cancel")
    events = checked_events((await stream).text)
    last = events[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "cancelled")
    assert checked_events((await replayed(gateway, run.id)).text) == events


async def test_its_events_are_read_again_from_any_of_them(gateway: Gateway) -> None:
    text = (await gateway.post(PATH, {**BODY, "stream": True})).text
    events = checked_events(text)
    assert kinds(events)[:4] == ["created", "queued", "in_progress", "output_item.added"]
    response = events[-1]["response"]
    assert await read(gateway, response["id"]) == response
    assert (await replayed(gateway, response["id"])).text == text
    for number in range(len(events)):
        rest = await replayed(gateway, response["id"], starting_after=number)
        assert rest.headers["content-type"].startswith("text/event-stream")
        assert rest.text == "".join(part + "\n\n" for part in text.split("\n\n")[number + 1 : -1])


async def test_a_client_that_leaves_does_not_end_it(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 5, "fake_length": 60})
    body = {**BODY, "max_output_tokens": 60, "stream": True}
    exchange = gateway.exchange(PATH, body)
    answering = exchange.begin()
    await eventually(lambda: gateway.engine.num_running == 1)
    exchange.leave()
    await answering
    (run,) = gateway.runtime.responses.all_running()
    readers = [asyncio.create_task(replayed(gateway, run.id, starting_after=n)) for n in (0, 4)]
    texts = [(await reader).text for reader in readers]
    assert texts[0].endswith(texts[1])
    assert (await ended(gateway, run.id))["usage"]["output_tokens"] == 60


@pytest.mark.parametrize(
    ("fields", "query", "param"),
    [
        ({}, {"stream": "true"}, "stream"),
        ({"background": False, "stream": True}, {"stream": "true"}, "stream"),
        ({"stream": True}, {"starting_after": 3}, "starting_after"),
        ({"stream": True}, {"stream": "true", "starting_after": -1}, "starting_after"),
    ],
)
async def test_events_that_are_not_kept_are_refused(
    gateway: Gateway, fields: Any, query: Any, param: str
) -> None:
    response = await gateway.post(PATH, {**BODY, **fields})
    response_id = (
        checked_events(response.text)[0]["response"] if fields.get("stream") else response.json()
    )["id"]
    error = await refused(gateway, "GET", f"{PATH}/{response_id}", 400, params=query)
    assert error["param"] == param


async def test_a_request_that_is_not_valid_is_refused_at_once(gateway: Gateway) -> None:
    check = Check(gateway, InvalidRequest("text.format", "it cannot be enforced"))
    check.let_go.set()
    schema = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}
    for fields, param in (
        ({"spec_decode": {"proposer": "none-such"}}, "spec_decode.proposer"),
        ({"text": {"format": schema}}, "text.format"),
    ):
        response = await gateway.post(PATH, {**BODY, **fields})
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert (gateway.runtime.responses.num_running, len(gateway.runtime.responses)) == (0, 0)


async def test_a_dead_engine_ends_it_as_failed(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_die_after_steps": 5, "fake_length": 100})
    first = await begun(gateway, {**LONG, "stream": False})
    failed = await ended(gateway, first["id"])
    assert (failed["status"], failed["error"]["type"]) == ("failed", "engine_dead")
    assert text_of(failed)


async def test_too_little_memory_drops_events_but_no_response(start: StartGateway) -> None:
    gateway = await start(max_stored_response_bytes=6000)
    events = checked_events((await gateway.post(PATH, {**BODY, "stream": True})).text)
    assert (events[-1]["type"], events[-1]["code"]) == ("error", "unsupported_parameter")
    response_id = events[0]["response"]["id"]
    assert (await ended(gateway, response_id))["usage"]["output_tokens"] == 12
    await refused(gateway, "GET", f"{PATH}/{response_id}", 400, params={"stream": "true"})
    assert gateway.runtime.responses.num_bytes <= 6000


async def test_without_a_store_there_is_no_background(start: StartGateway) -> None:
    gateway = await start(max_stored_responses=0)
    response = await gateway.post(PATH, BODY)
    assert response.json()["error"]["param"] == "background"


def test_the_stop_of_a_server_ends_it_as_failed() -> None:
    served = ThreadedServer(engine_args=SLOW).start()
    url = f"{served.url}{PATH}"
    alone = httpx.post(url, json=LONG).json()["id"]
    store = served.runtime.responses
    with httpx.stream("POST", url, json={**LONG, "stream": True}, timeout=60) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: response.created"
        stopping = threading.Thread(target=served.stop)
        stopping.start()
        last = [line for line in lines if line.startswith("data: ")][-1]
    stopping.join()
    error = json.loads(last.removeprefix("data: "))
    assert (error["type"], error["code"]) == ("error", "stopping")
    assert error["sequence_number"] > 2
    assert store.num_running == 0
    assert len(store) == 2
    stored = store.find(alone, "")
    assert stored is not None
    body = json.loads(stored.body)
    assert (body["status"], body["error"]["type"]) == ("failed", "stopping")
    assert text_of(body)
