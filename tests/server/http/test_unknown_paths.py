"""An unknown path, or a wrong method, is told what exists."""

from typing import Any

import pytest

from server.http.unknown_paths import MAX_PATH, MAX_ROUTES, unknown_path
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, build

BASE_URL_HINT = "The base URL of an OpenAI client ends in /v1."


async def message(gateway: Gateway, path: str, method: str = "GET", status: int = 404) -> str:
    response = await gateway.client.request(method, path)
    assert response.status_code == status
    error: dict[str, Any] = response.json()["error"]
    code = {404: "not_found", 405: "method_not_allowed"}[status]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, code)
    text: str = error["message"]
    return text


@pytest.mark.parametrize(
    ("path", "right", "hint"),
    [
        ("/chat/completions", "POST /v1/chat/completions", BASE_URL_HINT),
        ("/completions", "POST /v1/completions", BASE_URL_HINT),
        ("/models", "GET /v1/models", BASE_URL_HINT),
        ("/models/Qwen/x", "GET /v1/models/Qwen/x", BASE_URL_HINT),
        ("/v1/v1/chat/completions", "POST /v1/chat/completions", "has /v1 already."),
        ("/v1/v1/models", "GET /v1/models", "has /v1 already."),
        ("/openai/v1/chat/completions", "POST /v1/chat/completions", ""),
        ("/v1/chat/completions/", "POST /v1/chat/completions", ""),
        ("/v1//chat/completions", "POST /v1/chat/completions", ""),
        ("/V1/Chat/Completions", "POST /v1/chat/completions", ""),
        ("/v1/tokenize", "POST /tokenize", ""),
        ("/v1/metrics", "GET /metrics", ""),
        ("/version/", "GET /version", ""),
        ("/spec_policy", "GET or PUT /v1/spec_policy", BASE_URL_HINT),
    ],
)
async def test_a_wrong_prefix_is_corrected(
    gateway: Gateway, path: str, right: str, hint: str
) -> None:
    text = await message(gateway, path, "POST")
    assert f"There is no {path} here; did you mean {right}?" in text
    assert text.endswith(hint or "?")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/v1/embeddings", "makes no embeddings"),
        ("/v1/rerank", "does not rank"),
        ("/v2/rerank", "does not rank"),
        ("/score", "does not rank, score"),
        ("/v1/audio/speech", "does not speak"),
        ("/v1/audio/transcriptions", "send recordings in a chat"),
        ("/v1/images/generations", "no images"),
        ("/v1/moderations", "moderates none"),
        ("/v1/uploads", "POST /v1/files stores whole files"),
        ("/v1/vector_stores/vs_1/files", "POST /v1/files stores whole files"),
        ("/v1/assistants", "keeps no assistants"),
        ("/v1/threads/thread_1/runs", "keeps no assistants"),
        ("/v1/fine_tuning/jobs", "trains no models"),
        ("/v1/realtime", "no live sessions"),
        ("/api/chat", "not Ollama's"),
        ("/generate", "OpenAI's API"),
        ("/embeddings", "makes no embeddings"),
        ("/v1/v1/embeddings", "makes no embeddings"),
    ],
)
async def test_a_task_that_the_server_lacks_is_named_with_those_it_has(
    gateway: Gateway, path: str, why: str
) -> None:
    text = await message(gateway, path, "POST")
    assert text.startswith(f"There is no {path} here: ")
    assert why in text
    assert "It has POST /v1/chat/completions, " in text


@pytest.mark.parametrize(
    ("path", "first"),
    [
        ("/v1/chat/completion", "POST /v1/chat/completions"),
        ("/v1/completion", "POST /v1/completions"),
        ("/v1/batch", "GET and POST /v1/batches"),
        ("/v1/switch_spec_metod", "POST /v1/switch_spec_method"),
        ("/v1/unload_propose", "POST /v1/unload_proposer"),
        ("/detokenise", "POST /detokenize"),
        ("/nothing/at/all", "POST /v1/chat/completions"),
        ("/", "POST /v1/chat/completions"),
    ],
)
async def test_the_closest_routes_come_first(gateway: Gateway, path: str, first: str) -> None:
    text = await message(gateway, path)
    assert f"There is no {path} here. It has {first}, " in text
    assert text.endswith(", and what GET /openapi.json lists.")
    assert text.count(", ") <= MAX_ROUTES


async def test_the_consoles_pages_are_not_listed(gateway: Gateway) -> None:
    assert "/console," not in await message(gateway, "/consol")


async def test_a_long_or_odd_path_is_cut_and_escaped(gateway: Gateway) -> None:
    text = await message(gateway, "/" + "x/y" * 5000)
    assert len(text) < MAX_PATH + 400
    assert "\n" not in await message(gateway, "/v1/a%0Aevent=forged")


def test_without_documented_routes_there_is_nothing_to_list() -> None:
    assert unknown_path("/x", []) == "There is no /x here."


def test_only_routes_that_exist_are_named() -> None:
    routes = [r for r in build()[0].routes if "chat" not in r.path]  # type: ignore[attr-defined]
    assert "chat" not in unknown_path("/v1/embeddings", routes)
    assert "did you mean" not in unknown_path("/chat/completions", routes)


async def test_a_wrong_method_is_told_the_right_ones(gateway: Gateway) -> None:
    text = await message(gateway, "/v1/chat/completions", "GET", 405)
    assert text == "/v1/chat/completions does not support GET; it supports POST."
    text = await message(gateway, "/v1/spec_policy", "DELETE", 405)
    assert text == "/v1/spec_policy does not support DELETE; it supports GET and PUT."
    assert len(await message(gateway, "/health", "X" * 200, 405)) < 100


async def test_a_preflight_without_cors_is_told_the_setting(start: StartGateway) -> None:
    gateway = await start()
    headers = {"origin": "http://127.0.0.1:3000", "access-control-request-method": "POST"}
    response = await gateway.client.options("/v1/chat/completions", headers=headers)
    assert response.status_code == 405
    assert "--allowed-origins" in response.json()["error"]["message"]
    assert not [name for name in response.headers if name.startswith("access-control")]
