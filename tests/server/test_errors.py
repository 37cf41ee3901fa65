"""The one mapping from exceptions to OpenAI's error body."""

import time
from typing import Any

import pytest

from engine_adapter.seam.errors import (
    EngineConfigError,
    EngineDead,
    EngineFull,
    EngineNotReady,
    EngineStartError,
    InvalidRequest,
)
from engine_adapter.seam.text import MAX_ECHO, short_repr
from server.body_faults import MAX_BODY_LEVELS
from server.errors import ApiError, Unavailable, error_body, error_response, to_api_error
from server.text import did_you_mean
from tests.server.gateway import Gateway

MALFORMED = [
    (b"", None),
    (b"{", "invalid_json"),
    (b'{"prompt": "a"', "invalid_json"),
    (b"{'prompt': 'a'}", "invalid_json"),
    (b'{"prompt": "a"} {}', "invalid_json"),
    (b'"prompt"', None),
    (b"[]", None),
    (b"null", None),
    (b"7", None),
    (b'\xff\xfe{"prompt"', "invalid_json"),
    (b'{"a":' * 100_000, "invalid_json"),
    (b'{"prompt": [' + b"9" * 5000 + b"]}", "invalid_json"),
]


@pytest.mark.parametrize(
    ("error", "status", "kind", "param", "code"),
    [
        (ApiError(409, "no", param="mode", code="c"), 409, "invalid_request_error", "mode", "c"),
        (InvalidRequest("top_p", "no"), 400, "invalid_request_error", "top_p", None),
        (InvalidRequest(None, "no", "why"), 400, "invalid_request_error", None, "why"),
        (EngineNotReady("no"), 503, "server_error", None, "engine_not_ready"),
        (EngineDead("no"), 503, "server_error", None, "engine_dead"),
        (EngineFull("no"), 429, "rate_limit_error", None, "server_overloaded"),
        (EngineStartError("no"), 500, "server_error", None, "internal_error"),
        (EngineConfigError("model", "no"), 400, "invalid_request_error", None, None),
        (RuntimeError("a secret"), 500, "server_error", None, "internal_error"),
    ],
)
def test_every_exception_has_a_status_and_four_fields(
    error: Exception, status: int, kind: str, param: str | None, code: str | None
) -> None:
    mapped = to_api_error(error)
    assert mapped.status == status
    body = error_body(mapped)["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert (body["type"], body["param"], body["code"]) == (kind, param, code)
    assert "secret" not in body["message"]


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (EngineNotReady("no"), "5"),
        (EngineFull("no"), "5"),
        (EngineDead("no", 17.2), "18"),
        (EngineDead("no", 0.0), "1"),
        (EngineDead("no"), None),
        (Unavailable("no", "engine_start_failed", None), None),
    ],
)
def test_refusals_have_retry_after_where_a_retry_can_help(
    error: Exception, seconds: str | None
) -> None:
    assert error_response(to_api_error(error)).headers.get("retry-after") == seconds


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt":' + b"[" * 5000 + b"]" * 5000 + b"}", "The body can have at most 500 levels"),
        (b'{"prompt": "\xff"}', "The body is not valid JSON: it is not in UTF-8."),
        (b'{"seed": ' + b"9" * 5000 + b"}", "The body is not valid JSON: a number has too many"),
    ],
)
async def test_a_body_that_cannot_be_read_is_told_why(
    gateway: Gateway, content: bytes, message: str
) -> None:
    headers = {"content-type": "application/json"}
    response = await gateway.client.post("/v1/completions", content=content, headers=headers)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_json")
    assert error["message"].startswith(message)


async def test_as_many_levels_as_the_message_names_are_read(gateway: Gateway) -> None:
    levels = MAX_BODY_LEVELS - 1
    content = b'{"prompt": "a", "max_tokens": 1, "metadata": %b}' % (b"[" * levels + b"]" * levels)
    headers = {"content-type": "application/json"}
    response = await gateway.client.post("/v1/completions", content=content, headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("completions", {"spec_decode": {"proposr": "x"}}, "spec_decode.proposer?"),
        (
            "chat/completions",
            {"stream_options": {"include_usge": True}},
            "stream_options.include_usage?",
        ),
        (
            "chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"nam": "a"}}},
            "response_format.json_schema.name?",
        ),
        ("switch_spec_method", {"speculative_model": "none", "k": 1}, "k is not a known field."),
        ("switch_spec_method", {"speculative_model": "none", "mod": "drain"}, "did you mean mode?"),
        ("explain", {"chat": {"messages": [], "spec_decode": {"k": 1}}}, "not a known field."),
        ("explain", {"chatt": {}}, "did you mean chat?"),
    ],
)
async def test_an_unknown_field_suggests_the_one_that_was_meant(
    gateway: Gateway, path: str, body: dict[str, Any], message: str
) -> None:
    body = {"prompt": "a"} | body if path == "completions" else body
    if path == "chat/completions":
        body = {"messages": [{"role": "user", "content": "a"}]} | body
    error = (await gateway.post(f"/v1/{path}", body)).json()["error"]
    assert error["code"] == "unknown_parameter"
    assert error["message"].endswith(message)


@pytest.mark.parametrize("name", ["x" * 100_000, "spec_decode" * 6])
def test_a_long_unknown_name_is_not_compared_with_the_known_ones(name: str) -> None:
    known = [f"{name}{i}" for i in range(200)]
    begun = time.process_time()
    assert did_you_mean(name, known) == ""
    assert time.process_time() - begun < 0.1


def test_the_longest_names_are_compared_in_little_time() -> None:
    known = [f"{'ab' * 31}{i:02}" for i in range(100)]
    begun = time.process_time()
    assert did_you_mean("ba" * 32, known)
    assert time.process_time() - begun < 1


def test_long_input_is_cut_in_messages() -> None:
    assert short_repr("short") == "'short'"
    assert len(short_repr("x" * 1000)) == MAX_ECHO
    assert len(ApiError(400, "m", param="p" * 1000).param or "") == MAX_ECHO


def test_lone_surrogates_do_not_break_the_body() -> None:
    error = ApiError(400, "lone \ud800", param="\ud800")
    assert b"lone ?" in bytes(error_response(error).body)


async def test_malformed_body_is_a_400(gateway: Gateway) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        for content, code in MALFORMED:
            headers = {"content-type": "application/json"}
            response = await gateway.client.post(path, content=content, headers=headers)
            error = response.json()["error"]
            assert response.status_code == 400, (path, content[:20], error)
            assert error["code"] == code, (path, content[:20], error)
            assert len(response.text) < 600


async def test_another_content_type_names_the_expected_one(gateway: Gateway) -> None:
    headers = {"content-type": "text/plain"}
    content = b'{"prompt": "a"}'
    response = await gateway.client.post("/v1/completions", content=content, headers=headers)
    assert response.status_code == 400
    assert "application/json" in response.json()["error"]["message"]


async def test_missing_field_has_a_code(gateway: Gateway) -> None:
    for path, param in (("/v1/completions", "prompt"), ("/v1/chat/completions", "messages")):
        error = (await gateway.post(path, {"model": "specgate-demo"})).json()["error"]
        assert (error["param"], error["code"]) == (param, "missing_required_parameter")
