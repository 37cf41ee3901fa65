"""Clients that set only headers and a model name choose a proposer, too."""

from typing import Any

import pytest

from server.http.headers import SPEC_METHOD
from tests.server.conftest import StartGateway
from tests.server.gateway import MODEL, Gateway

CHAT = "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "word"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "word", "max_tokens": 2},
    "/v1/responses": {"input": "word", "max_output_tokens": 2},
}


async def method_of(gateway: Gateway, path: str = CHAT, **request: Any) -> str:
    """The method that a request gets; `headers` are its headers, the rest fields of its body."""
    headers = request.pop("headers", {})
    response = await gateway.client.post(path, json=BODIES[path] | request, headers=headers)
    assert response.status_code == 200, response.text
    return response.headers[SPEC_METHOD]


async def error_of(gateway: Gateway, headers: dict[str, str], **fields: Any) -> tuple[str, str]:
    response = await gateway.client.post(CHAT, json=BODIES[CHAT] | fields, headers=headers)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    return error["param"], error["message"]


@pytest.mark.parametrize("path", BODIES)
async def test_a_header_chooses(gateway: Gateway, path: str) -> None:
    assert await method_of(gateway, path) != "ngram"
    assert await method_of(gateway, path, headers={"X-Specgate-Proposer": "ngram"}) == "ngram"
    assert await method_of(gateway, path, headers={"x-specgate-proposer": "none"}) == "none"
    k = {"x-specgate-num-speculative-tokens": "0"}
    assert await method_of(gateway, path, headers=k) == "none"


@pytest.mark.parametrize("path", BODIES)
async def test_the_models_name_chooses_and_is_repeated(gateway: Gateway, path: str) -> None:
    model = f"{MODEL}:ngram"
    response = await gateway.client.post(path, json=BODIES[path] | {"model": model})
    assert response.headers[SPEC_METHOD] == "ngram"
    assert response.json()["model"] == model


async def test_the_body_wins_over_headers_and_these_over_the_name(gateway: Gateway) -> None:
    headers = {"x-specgate-proposer": "ngram", "x-specgate-num-speculative-tokens": "0"}
    spec: dict[str, Any] = {"proposer": "draft"}
    by_body = spec | {"num_speculative_tokens": 1}
    assert await method_of(gateway, headers=headers, spec_decode=by_body) == "draft"
    # Each field for itself: the header's k holds for the body's proposer.
    assert await method_of(gateway, headers=headers, spec_decode=spec) == "none"
    one = {"x-specgate-proposer": "ngram"}
    assert await method_of(gateway, headers=one, model=f"{MODEL}:draft") == "ngram"
    assert await method_of(gateway, headers=one, spec_decode={"proposer": None}) == "none"


async def test_errors_name_the_header(gateway: Gateway) -> None:
    param, message = await error_of(gateway, {"x-specgate-proposer": "nope"})
    assert param == "x-specgate-proposer"
    assert "available: ngram" in message
    name = "x-specgate-num-speculative-tokens"
    for value in ("-1", "1.5", "x", "9" * 5000, ""):
        param, message = await error_of(gateway, {name: value})
        assert param == name
        assert len(message) < 400
    param, message = await error_of(gateway, {name: "99", "x-specgate-proposer": "ngram"})
    assert (param, message.split()[0]) == (name, name)


async def test_a_name_with_an_unknown_proposer_is_an_unknown_model(gateway: Gateway) -> None:
    for name in (f"{MODEL}:nope", f"{MODEL}:", "nope:ngram", ":ngram"):
        response = await gateway.client.post(CHAT, json=BODIES[CHAT] | {"model": name})
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (404, "model_not_found")
        assert "NAME:PROPOSER" in error["message"]


async def test_models_are_listed_with_their_proposers_if_the_operator_wishes(
    start: StartGateway,
) -> None:
    plain = await start(served_model_name=("a", "b:c"))
    assert len((await plain.client.get("/v1/models")).json()["data"]) == 2
    gateway = await start(served_model_name=("a", "b:c"), list_proposers_as_models=True)
    names = [model["id"] for model in (await gateway.client.get("/v1/models")).json()["data"]]
    assert names[:2] == ["a", "b:c"]
    assert {"a:ngram", "b:c:ngram", "a:auto", "a:none"} <= set(names)
    for name in names:
        assert (await gateway.client.get(f"/v1/models/{name}")).json()["id"] == name
        assert await method_of(gateway, model=name)
    assert await method_of(gateway, model="b:c:ngram") == "ngram"


async def test_rules_see_the_models_own_name(gateway: Gateway) -> None:
    rule = {"name": "r", "match": {"model": MODEL}, "use": {"proposer": "suffix"}}
    response = await gateway.client.put("/v1/spec_policy", json={"rules": [rule]})
    assert response.status_code == 200, response.text
    body = {
        "chat": BODIES[CHAT] | {"model": f"{MODEL}:ngram"},
        "headers": {"x-specgate-num-speculative-tokens": "0"},
    }
    explained = (await gateway.client.post("/v1/explain", json=body)).json()
    assert (explained["spec_method"], explained["selected_by"]) == ("none", "request")
    assert explained["request"]["model"] == MODEL
    assert explained["rules"][0]["matches"]
