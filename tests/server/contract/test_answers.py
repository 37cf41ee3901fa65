"""Every answer that the document has is one that the server really sends, and the other way round.

A new operation needs an entry in `SUCCESS`, and one in `ERRORS` for each error of its own.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from demo import model_path
from server.batches.batch import ENDED
from server.batches.files import MAX_TRANSFERS
from tests.engine_adapter.lora import cached_adapter
from tests.server.conftest import StartGateway
from tests.server.contract.bodies import BATCH, CHAT, COMPLETION, FORM, MESSAGE, RESPONSE, SUCCESS
from tests.server.contract.contract import Contract, contract
from tests.server.gateway import Gateway, eventually

KEYS: dict[str, Any] = {"api_key": ("inference",), "admin_key": ("admin",)}
ADMIN = {"authorization": "Bearer admin"}

LONG = {"prompt": "def f(x):", "max_tokens": 500, "ignore_eos": True}
LINES = b"".join(
    json.dumps(
        {"custom_id": f"{i}", "method": "POST", "url": "/v1/completions", "body": LONG}
    ).encode()
    + b"\n"
    for i in range(20)
)
"""A file of requests that take a while."""

OF_STORED_FILES = (
    *("list_files", "retrieve_file", "delete_file", "retrieve_file_content"),
    *("list_batches", "retrieve_batch", "cancel_batch"),
)
NO_MODEL = {"model": "none"}
ERRORS: dict[tuple[str, int], Any] = {
    ("create_chat_completion", 404): CHAT | NO_MODEL,
    ("create_completion", 404): COMPLETION | NO_MODEL,
    ("create_response", 404): RESPONSE | NO_MODEL,
    ("retrieve_response", 404): None,
    ("delete_response", 404): None,
    ("cancel_response", 404): None,
    ("list_input_items", 404): None,
    ("retrieve_model", 404): None,
    ("tokenize", 404): {"prompt": "x"} | NO_MODEL,
    ("compact_conversation", 404): RESPONSE | NO_MODEL,
    ("count_input_tokens", 404): RESPONSE | NO_MODEL,
    ("retrieve_conversation", 404): None,
    ("update_conversation", 404): {"metadata": {}},
    ("delete_conversation", 404): None,
    ("create_conversation_items", 404): {"items": [{"role": "user", "content": "a"}]},
    ("list_conversation_items", 404): None,
    ("retrieve_conversation_item", 404): None,
    ("delete_conversation_item", 404): None,
    ("create_chat_batch", 404): {"messages": [CHAT["messages"]]} | NO_MODEL,
    ("invoke", 404): CHAT | NO_MODEL,
    ("generate", 404): {"token_ids": [5]} | NO_MODEL,
    ("create_message", 404): MESSAGE | NO_MODEL,
    ("count_message_tokens", 404): {"messages": MESSAGE["messages"]} | NO_MODEL,
    ("detokenize", 404): {"tokens": [5]} | NO_MODEL,
    ("explain", 404): {"chat": CHAT | NO_MODEL},
    ("switch_spec_method", 404): {"proposer": "none-such"},
    ("load_proposer", 409): {"name": "ngram", "method": "ngram", "num_speculative_tokens": 2},
    ("unload_proposer", 404): {"name": "none-such"},
    ("unload_proposer", 409): {"name": "draft"},
    ("load_lora_adapter", 409): {"lora_name": "sql", "lora_path": str(model_path())},
    ("unload_lora_adapter", 409): {"lora_name": "sql"},
    ("create_file", 409): FORM,
    ("create_batch", 409): BATCH,
    **{(name, 409): None for name in OF_STORED_FILES},
}
"""Operation and status -> a body that has it on a server without LoRA and without a folder."""

GENERIC = (400, 401, 403, 408, 413, 500, 503)
"""Statuses that follow from a route's kind; the tests below find them by themselves."""

GENERATING = (
    *("create_chat_completion", "create_completion", "create_message"),
    *("create_response", "compact_conversation", "create_chat_batch", "invoke"),
    "generate",
)

ELSEWHERE = {
    *((name, status) for name in GENERATING for status in (429, 504)),
    ("tokenize", 429),
    ("count_message_tokens", 429),
    ("count_input_tokens", 429),
    ("create_conversation", 429),
    ("update_conversation", 429),
    ("create_conversation_items", 429),
    ("detokenize", 429),
    *((name, 429) for name in ("create_file", "create_batch", "retrieve_file_content")),
    *((name, 404) for name in ("create_batch", *OF_STORED_FILES) if not name.startswith("list_")),
    ("unload_lora_adapter", 404),
    ("switch_spec_method", 409),
    ("reset_prefix_cache", 409),
    ("switch_spec_method", 504),
}
"""Errors that need a scene of their own."""

WITHOUT_BODY = {
    "reset_prefix_cache",
    *("retrieve_response", "cancel_response", "list_input_items"),
    *("list_files", "list_batches"),
    "list_conversation_items",
}
"""Operations that have a 400 although they have no body."""

PATHS = {operation["operationId"]: (m, p) for m, p, operation in contract().operations()}


async def send(client: httpx.AsyncClient, name: str, body: Any, **more: Any) -> httpx.Response:
    """Sends a request of an operation and checks its answer against the document."""
    method, path = PATHS[name]
    path = path.replace("{model_id}", more.pop("model_id", "specgate-demo"))
    for kind in ("response_id", "file_id", "batch_id", "conversation_id", "item_id"):
        thing_id = more.pop(kind, "none-such")
        path = path.replace(f"{{{kind}}}", thing_id)
        body = json.loads(json.dumps(body).replace(f"{{{kind}}}", thing_id))
    if body == FORM:
        more |= {"data": FORM, "files": {"file": ("lines.jsonl", LINES)}}
    else:
        more["json"] = body
    response = await client.request(method, path, **more)
    contract().check(response)
    return response


async def stored_ids(client: httpx.AsyncClient) -> dict[str, str]:
    """The ids of a stored response, of a file, of a batch that runs, and of a conversation."""

    async def new(name: str, body: Any, **ids: str) -> str:
        thing_id: str = (await send(client, name, body, **ids)).json()["id"]
        return thing_id

    item = {"id": "item", "role": "user", "content": "a"}
    ids = {
        "response_id": await streamed_in_background(client),
        "conversation_id": await new("create_conversation", {"items": [item]}),
        "item_id": "item",
    }
    batch_id = await new("create_batch", BATCH, file_id=await new("create_file", FORM))
    return ids | {"file_id": await new("create_file", FORM), "batch_id": batch_id}


async def end_batches(gateway: Gateway) -> None:
    """Cancels all batches: a reset of the prefix cache needs an engine without requests."""

    async def running() -> list[str]:
        page = (await gateway.client.get("/v1/batches", params={"limit": 100})).json()
        assert not page["has_more"]
        return [batch["id"] for batch in page["data"] if batch["status"] not in ENDED]

    for batch_id in await running():
        await gateway.client.post(f"/v1/batches/{batch_id}/cancel")
    while await running():  # noqa: ASYNC110 (a batch has no event for its end)
        await asyncio.sleep(0.02)
    await eventually(lambda: gateway.engine.num_running == 0)


async def streamed_in_background(client: httpx.AsyncClient) -> str:
    """The id of a response that has run in the background, with its events."""
    body = {**RESPONSE, "background": True, "stream": True}
    events = (await send(client, "create_response", body)).text.split("\n\n")
    response_id: str = json.loads(events[0].partition("data: ")[2])["response"]["id"]
    return response_id


async def test_every_success_is_as_documented(
    start: StartGateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cached_adapter(monkeypatch, tmp_path, "sql")
    files_dir = str(tmp_path / "files")
    gateway = await start(enable_lora=True, allowed_hub_id=["sql"], files_dir=files_dir)
    sent: set[tuple[str, str]] = set()
    for name in PATHS:
        for body in SUCCESS[name]:
            needs_ids = "_id}" in PATHS[name][1] + json.dumps(body)
            ids = await stored_ids(gateway.client) if needs_ids else {}
            if name == "reset_prefix_cache":
                await end_batches(gateway)
            response = await send(gateway.client, name, body, **ids)
            assert response.status_code == 200, (name, response.text)
            sent.add((name, response.headers["content-type"].partition(";")[0]))
    openmetrics = {"accept": "application/openmetrics-text"}
    response = await send(gateway.client, "get_metrics", None, headers=openmetrics)
    sent.add(("get_metrics", response.headers["content-type"].partition(";")[0]))
    ids = {"response_id": await streamed_in_background(gateway.client)}
    again = await send(gateway.client, "retrieve_response", None, params={"stream": "true"}, **ids)
    sent.add(("retrieve_response", again.headers["content-type"].partition(";")[0]))
    assert sent == {
        (operation["operationId"], media_type)
        for _, _, operation in contract().operations()
        for media_type in operation["responses"].get("200", {"content": ()})["content"]
    }


async def test_every_error_of_an_operation_is_as_documented(gateway: Gateway) -> None:
    for (name, status), body in ERRORS.items():
        response = await send(gateway.client, name, body, model_id="none-such")
        assert response.status_code == status, (name, response.text)


def test_every_documented_error_is_sent_by_a_test() -> None:
    documented = {
        (operation["operationId"], int(status))
        for _, _, operation in contract().operations()
        for status in operation["responses"]
        if int(status) >= 400 and int(status) not in GENERIC
    }
    assert documented == {*ERRORS, *ELSEWHERE}


async def test_an_unload_of_an_unknown_adapter(start: StartGateway) -> None:
    gateway = await start(enable_lora=True)
    response = await send(gateway.client, "unload_lora_adapter", {"lora_name": "none-such"})
    assert response.status_code == 404


async def test_limits_refuse_and_end_requests(start: StartGateway) -> None:
    gateway = await start(max_key_requests_per_minute=len(GENERATING), request_timeout_s=1e-9)
    for status in (504, 429):
        for name in GENERATING:
            assert (await send(gateway.client, name, valid(name))).status_code == status
    for name in (
        *("tokenize", "detokenize", "count_message_tokens", "count_input_tokens"),
        *("create_conversation", "update_conversation", "create_conversation_items"),
        *("create_file", "create_batch"),
    ):
        assert (await send(gateway.client, name, valid(name))).status_code == 429


async def test_a_file_and_a_batch_that_do_not_exist(start: StartGateway, tmp_path: Path) -> None:
    gateway = await start(files_dir=str(tmp_path / "files"))
    for name in ("create_batch", *OF_STORED_FILES):
        if not name.startswith("list_"):
            assert (await send(gateway.client, name, valid(name))).status_code == 404
    ids = await stored_ids(gateway.client)
    owner = gateway.state.enabled_batches().files.shelf("")
    owner.num_transfers = MAX_TRANSFERS
    response = await send(gateway.client, "retrieve_file_content", None, **ids)
    assert response.status_code == 429


async def test_a_switch_during_a_drain_and_a_drain_that_ends_too_late(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 20})
    running = asyncio.create_task(gateway.complete(max_tokens=1000))
    await eventually(lambda: gateway.engine.num_running == 1)
    drain = {"proposer": "ngram", "mode": "drain", "timeout_s": 1.0}
    draining = asyncio.create_task(send(gateway.client, "switch_spec_method", drain))
    await eventually(lambda: gateway.runtime.switcher.drain is not None)
    second = await send(gateway.client, "switch_spec_method", {"proposer": "suffix"})
    assert second.status_code == 409
    assert (await draining).status_code == 504
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def operation_of(name: str) -> dict[str, Any]:
    """An operation of the document."""
    method, path = PATHS[name]
    found: dict[str, Any] = contract().document["paths"][path][method.lower()]
    return found


def valid(name: str) -> Any:
    """A valid body of an operation."""
    return next(iter(SUCCESS[name]), None)


def documented(status: int) -> set[str]:
    """The operations that have a status."""
    return {
        operation["operationId"]
        for _, _, operation in contract().operations()
        if str(status) in operation["responses"]
    }


Ask = Callable[[str], Awaitable[httpx.Response]]


async def having(status: int, ask: Ask) -> set[str]:
    """The operations that answer with a status."""
    return {name for name in PATHS if (await ask(name)).status_code == status}


async def test_401_403_and_413_come_where_they_are_documented(start: StartGateway) -> None:
    keys = await start(**KEYS)
    assert await having(401, lambda name: send(keys.client, name, None)) == documented(401)
    open_ = await start()
    foreign = {"host": "192.0.2.1"}
    refused = await having(403, lambda name: send(open_.client, name, None, headers=foreign))
    assert refused == documented(403)
    small = await start(max_body_bytes=10)

    async def ask(name: str) -> httpx.Response:
        takes_body = "requestBody" in operation_of(name)
        return await send(small.client, name, {"x": "y" * 20} if takes_body else None)

    assert await having(413, ask) == documented(413)


async def test_408_comes_where_it_is_documented(start: StartGateway, tmp_path: Path) -> None:
    impatient = await start(body_timeout_s=0.01, files_dir=str(tmp_path / "files"))

    async def stuck(begin: bytes) -> AsyncIterator[bytes]:
        yield begin
        await asyncio.sleep(60)

    async def ask(name: str) -> httpx.Response:
        if "requestBody" not in operation_of(name):
            return await send(impatient.client, name, None)
        method, path = PATHS[name]
        is_form = name == "create_file"
        kind = "multipart/form-data; boundary=x" if is_form else "application/json"
        headers = {"content-type": kind}
        return await impatient.client.request(
            method, path, content=stuck(b"--x" if is_form else b"{"), headers=headers
        )

    assert await having(408, ask) == documented(408)


async def test_400_comes_where_it_is_documented(start: StartGateway, tmp_path: Path) -> None:
    gateway = await start(strict_fields=True, files_dir=str(tmp_path / "files"))
    refused = await having(400, lambda name: send(gateway.client, name, {"none-such": 1}))
    assert refused | WITHOUT_BODY == documented(400)


async def test_400_without_a_body(start: StartGateway, tmp_path: Path) -> None:
    gateway = await start(files_dir=str(tmp_path / "files"))
    stored = (await send(gateway.client, "create_response", RESPONSE)).json()["id"]
    for name, query in (
        ("retrieve_response", {"stream": "true"}),
        ("cancel_response", {}),
        ("list_input_items", {"after": "none-such"}),
        ("list_input_items", {"limit": "0"}),
        ("list_files", {"after": "none-such"}),
        ("list_files", {"purpose": "vision"}),
        ("list_batches", {"limit": "101"}),
        ("list_conversation_items", {"limit": "0"}),
        ("reset_prefix_cache", {"reset_external": "true"}),
    ):
        response = await send(gateway.client, name, None, response_id=stored, params=query)
        assert response.status_code == 400, name


async def test_500_comes_where_it_is_documented(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(type(gateway.app.state), "__getattr__", broken)
    failing = await having(500, lambda name: send(gateway.client, name, valid(name)))
    assert failing == documented(500) == set(PATHS)


async def test_503_comes_where_it_is_documented(start: StartGateway) -> None:
    gateway = await start(wait=False, engine_args={"fake_start_s": 60})
    loading = await having(503, lambda name: send(gateway.client, name, valid(name)))
    # These are 503 only if the engine cannot start, or has died.
    assert loading | {"get_health", "ping"} == documented(503)


async def test_a_stream_that_fails_ends_with_a_documented_event(start: StartGateway) -> None:
    gateway = await start(
        engine_args={"fake_fail_prompt": "broken", "fake_trouble_after_tokens": 2}
    )
    body = {"prompt": "broken", "max_tokens": 9, "stream": True}
    response = await send(gateway.client, "create_completion", body)
    assert "error" in response.text


def test_a_wrong_answer_is_found() -> None:
    document = json.loads(json.dumps(contract().document))
    del document["paths"]["/version"]["get"]["responses"]["500"]
    request = httpx.Request("GET", "http://127.0.0.1/version")
    for status, headers, body in (
        (500, {}, {"error": {}}),
        (200, {}, {"version": "1"}),
        (200, {"x-more": "1"}, {"version": "1", "engine": "fake", "engine_version": None}),
        (200, {"content-type": "text/plain"}, {}),
    ):
        response = httpx.Response(
            status,
            headers={"content-type": "application/json", **headers},
            content=json.dumps(body),
            request=request,
        )
        with pytest.raises(AssertionError, match="GET /version"):
            Contract(document).check(response)
