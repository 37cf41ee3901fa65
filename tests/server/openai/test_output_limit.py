"""The server's default and ceiling of output tokens."""

from typing import Any

import pytest

from engine_adapter.seam.types import GenerationRequest
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, record_requests


async def limits(gateway: Gateway, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> list[Any]:
    """The limits that the engine gets for a chat and for a completion."""
    seen: list[GenerationRequest] = record_requests(gateway, monkeypatch)
    for ask in (gateway.chat, gateway.complete):
        response = await ask(**fields)
        assert response.status_code == 200, response.text
    return [request.sampling.max_tokens for request in seen]


@pytest.mark.parametrize(
    ("settings", "given", "chat", "completion"),
    [
        ({}, None, None, 16),
        ({}, 50, 50, 50),
        ({"default_max_tokens": 30}, None, 30, 16),
        ({"default_max_tokens": 30}, 50, 50, 50),
        ({"default_max_tokens": 10**6}, None, 2048, 16),
        ({"max_output_tokens": 30}, None, 30, 16),
        ({"max_output_tokens": 30}, 30, 30, 30),
        ({"max_output_tokens": 8}, None, 8, 8),
        ({"default_max_tokens": 20, "max_output_tokens": 30}, None, 20, 16),
        ({"default_max_tokens": 20, "max_output_tokens": 30}, 25, 25, 25),
    ],
)
async def test_a_limit_is_the_requests_own_or_the_servers(
    start: StartGateway,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    given: int | None,
    chat: int | None,
    completion: int,
) -> None:
    gateway = await start(**settings)
    chats, completions = await limits(gateway, monkeypatch, max_tokens=given)
    context = gateway.runtime.info.max_model_len
    assert completions == completion
    if chat == context:
        assert context > chats > context - 100, "the rest of the context"
    else:
        assert chats == chat


async def test_a_limit_above_the_ceiling_is_refused_by_the_field_that_set_it(
    start: StartGateway,
) -> None:
    gateway = await start(max_output_tokens=30)
    for ask, field in (
        (gateway.chat, "max_tokens"),
        (gateway.chat, "max_completion_tokens"),
        (gateway.complete, "max_tokens"),
    ):
        for stream in (False, True):
            response = await ask(**{field: 31}, stream=stream)
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, field)
            assert error["code"] == "max_tokens_too_large"
            assert "at most 30" in error["message"]
    response = await gateway.complete(max_tokens=0, echo=True)
    assert response.status_code == 200


async def test_an_answer_that_the_server_limits_ends_with_length(start: StartGateway) -> None:
    gateway = await start(default_max_tokens=7)
    body = (await gateway.chat(ignore_eos=True)).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 7
