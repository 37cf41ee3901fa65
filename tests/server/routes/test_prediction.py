"""Predicted outputs: their proposer, the engine's request, and the usage."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from engine_adapter.seam.types import Delta, GenerationRequest
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, events

TEXT = "def f(x):\n    return x"


def predicting(content: Any = TEXT) -> dict[str, Any]:
    return {"prediction": {"type": "content", "content": content}}


@pytest.fixture
def seen(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> list[GenerationRequest]:
    """The requests that reach the engine."""
    requests: list[GenerationRequest] = []
    generate = gateway.engine.generate

    async def observed(request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        requests.append(request)
        async for delta in generate(request):
            yield delta

    monkeypatch.setattr(gateway.engine, "generate", observed)
    return requests


async def test_a_prediction_is_drafted_by_its_own_proposer(
    gateway: Gateway, seen: list[GenerationRequest]
) -> None:
    ids = await gateway.runtime.renderer.encode_text(TEXT, param="prediction.content")
    for ask in (gateway.complete, gateway.chat):
        for content in (TEXT, [{"type": "text", "text": part} for part in (TEXT[:5], TEXT[5:])]):
            response = await ask(n=2, max_tokens=40, **predicting(content))
            assert response.status_code == 200, response.text
            assert response.headers["x-specgate-spec-method"] == "prediction"
    assert {request.spec_decode.prediction for request in seen} == {ids}
    assert all(request.spec_decode.pinned for request in seen)
    assert len(seen) == 8


async def test_usage_has_accepted_and_rejected_prediction_tokens(gateway: Gateway) -> None:
    body = (await gateway.chat(n=3, max_tokens=60, **predicting())).json()
    counts = body["metrics"]["speculative_decoding"]["by_proposer"]["prediction"]
    accepted, drafted = counts["accepted"], counts["drafted"]
    assert 0 < accepted < drafted
    details = {
        "accepted_prediction_tokens": accepted,
        "rejected_prediction_tokens": drafted - accepted,
        "num_draft_tokens": drafted,
        "num_accepted_draft_tokens": accepted,
    }
    assert body["usage"]["completion_tokens_details"] == details
    options = {"include_usage": True}
    *_, last = events(
        await gateway.complete(stream=True, stream_options=options, max_tokens=60, **predicting())
    )
    assert last["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 0


async def test_usage_without_a_prediction_has_no_prediction_tokens(
    gateway: Gateway, seen: list[GenerationRequest]
) -> None:
    for fields in ({}, {"prediction": None}):
        body = (await gateway.chat(max_tokens=20, **fields)).json()
        assert "accepted_prediction_tokens" not in body["usage"]["completion_tokens_details"]
        assert body["metrics"]["speculative_decoding"]["proposer"] == "draft"
    assert {request.spec_decode.prediction for request in seen} == {()}


@pytest.mark.parametrize(
    ("fields", "k"),
    [
        ({"spec_decode": {"proposer": "prediction"}}, 8),
        ({"speculative_model": "[prediction]", "num_speculative_tokens": 3}, 3),
        ({"num_speculative_tokens": 2}, 2),
    ],
)
async def test_the_proposer_of_a_prediction_can_be_named_and_capped(
    gateway: Gateway, fields: dict[str, Any], k: int
) -> None:
    body = (await gateway.chat(max_tokens=20, **predicting(), **fields)).json()
    figures = body["metrics"]["speculative_decoding"]
    assert (figures["proposer"], figures["num_spec_tokens"]) == ("prediction", k)


REFUSED: list[tuple[dict[str, Any], str]] = [
    (predicting() | {"spec_decode": {"proposer": "ngram"}}, "prediction"),
    (predicting() | {"speculative_model": "none"}, "prediction"),
    (predicting() | {"num_speculative_tokens": 0}, "prediction"),
    (predicting() | {"speculative_model": "nope"}, "speculative_model"),
    (predicting() | {"num_speculative_tokens": 9}, "num_speculative_tokens"),
    ({"prediction": TEXT}, "prediction"),
    ({"prediction": {"type": "file", "content": TEXT}}, "prediction.type"),
    ({"prediction": {"type": "content"}}, "prediction.content"),
    (predicting(5), "prediction.content"),
    (predicting([{"type": "image_url", "image_url": "x"}]), "prediction.content.0.type"),
    (predicting("\ud800"), "prediction.content"),
    (predicting("a b " * 3000), "prediction.content"),
    ({"prediction": {"type": "content", "content": TEXT, "colour": 1}}, "prediction.colour"),
]
"""Fields, and the error's `param`."""


@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_a_prediction_that_cannot_be_drafted_is_refused(
    gateway: Gateway, seen: list[GenerationRequest], fields: dict[str, Any], param: str
) -> None:
    for ask in (gateway.complete, gateway.chat):
        response = await ask(max_tokens=8, **fields)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param, response.text
    assert not seen


async def test_a_configured_proposer_replaces_the_built_in_one(start: StartGateway) -> None:
    mine = {"name": "mine", "method": "prediction", "num_speculative_tokens": 3}
    gateway = await start(proposer=({"name": "ngram"}, mine), primary="ngram")
    response = await gateway.chat(max_tokens=8, **predicting())
    assert response.headers["x-specgate-spec-method"] == "mine"


async def test_a_prediction_is_refused_without_its_proposer(gateway: Gateway) -> None:
    unloaded = await gateway.post("/v1/unload_proposer", {"name": "prediction"})
    assert unloaded.status_code == 200, unloaded.text
    error = (await gateway.chat(max_tokens=8, **predicting())).json()["error"]
    assert (error["param"], error["code"]) == ("prediction", "proposer_not_found")


async def test_no_switch_changes_a_predictions_proposer(
    gateway: Gateway, seen: list[GenerationRequest]
) -> None:
    await gateway.post("/v1/switch_spec_method", {"speculative_model": "none"})
    response = await gateway.chat(max_tokens=8, **predicting())
    assert response.headers["x-specgate-spec-method"] == "prediction"
