"""Fields that are not honoured: refused by name, ignored with notice, or without effect."""

from typing import Any

from server.schema.base import IGNORED, INSTEAD, REFUSED, WITHOUT_EFFECT
from server.schema.chat import ChatCompletionRequest
from server.schema.completions import CompletionRequest
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway

HEADER = "x-specgate-ignored-fields"

ASKING: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "modalities": ["text", "audio"],
    "use_beam_search": True,
    "lora_name": "mine",
    "thinking_token_budget": 5,
}
"""Values that are not neutral; other fields are tried with a value without a meaning."""


async def test_refused_fields_are_named_unless_neutral(gateway: Gateway) -> None:
    for name, neutral in REFUSED.items():
        for body, ask in (
            (CompletionRequest, gateway.complete),
            (ChatCompletionRequest, gateway.chat),
        ):
            if name in body.model_fields:
                continue
            value = ASKING.get(name, "what it asks for")
            error = (await ask(max_tokens=1, **{name: value})).json()["error"]
            assert (error["param"], error["code"]) == (name, "unsupported_parameter"), error
            for value in (None, *neutral):
                response = await ask(max_tokens=1, **{name: value})
                assert response.status_code == 200, (name, value, response.text)
                assert HEADER not in response.headers


async def test_unknown_fields_are_listed_in_a_header(gateway: Gateway) -> None:
    response = await gateway.complete(max_tokens=1, colour="red", shape=None)
    assert (response.status_code, response.headers[HEADER]) == (200, "colour, shape")
    response = await gateway.chat(max_tokens=1, stream=True, colour="red")
    assert response.headers[HEADER] == "colour"
    response = await gateway.post("/tokenize", {"prompt": "a", "colour": 1})
    assert response.headers[HEADER] == "colour"


async def test_a_refusal_says_what_to_send_instead(gateway: Gateway) -> None:
    assert INSTEAD.keys() <= REFUSED.keys()
    error = (await gateway.chat(structural_tag="{}")).json()["error"]
    assert (error["param"], error["code"]) == ("structural_tag", "unsupported_parameter")
    assert "structured_outputs" in error["message"]


async def test_wishes_are_listed_in_a_header_unless_neutral(gateway: Gateway) -> None:
    for ask in (gateway.complete, gateway.chat):
        for name, neutral in IGNORED.items():
            response = await ask(max_tokens=1, **{name: "high"})
            assert (response.status_code, response.headers[HEADER]) == (200, name)
            for value in (None, *neutral):
                assert HEADER not in (await ask(max_tokens=1, **{name: value})).headers


async def test_what_sdks_send_by_themselves_is_accepted(gateway: Gateway) -> None:
    wishes = {"store": True, "service_tier": "flex", "verbosity": "low"}
    response = await gateway.chat(max_tokens=1, **wishes, reasoning_effort="medium", top_p=0)
    assert response.status_code == 200
    listed = response.headers[HEADER].split(", ")
    assert sorted(listed) == ["reasoning_effort", "service_tier", "store", "verbosity"]


async def test_header_survives_any_name(gateway: Gateway) -> None:
    names = {"a\r\nx-evil: 1": 1, "ключ": 2, "long" * 500: 4}
    response = await gateway.complete(max_tokens=1, **names)
    assert response.status_code == 200
    assert "x-evil" not in response.headers
    assert response.headers[HEADER].startswith("a%0D%0Ax-evil%3A%201, %D0%BA")
    assert (await gateway.complete(**{"half \ud800": 1})).status_code == 400
    many = {f"unknown{i}": i for i in range(200)}
    response = await gateway.complete(max_tokens=1, **many)
    assert len(response.headers[HEADER]) <= 1024


async def test_strict_fields_refuse_unknown_ones(start: StartGateway) -> None:
    gateway = await start(strict_fields=True)
    error = (await gateway.complete(colour="red")).json()["error"]
    assert (error["param"], error["code"]) == ("colour", "unknown_parameter")
    for name, meant in (("temprature", "temperature"), ("usr", "user")):
        error = (await gateway.complete(**{name: 1})).json()["error"]
        assert error["message"] == f"'{name}' is not a known field; did you mean {meant}?"
    for name in ("store", "reasoning_effort"):
        error = (await gateway.chat(**{name: "high"})).json()["error"]
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    known = dict.fromkeys(WITHOUT_EFFECT, "x")
    assert (await gateway.complete(max_tokens=1, **known)).status_code == 200


async def test_messages_never_echo_more_than_200_characters(gateway: Gateway) -> None:
    long = "x" * 5000
    bodies: list[dict[str, Any]] = [
        {"model": long},
        {"speculative_model": long},
        {"spec_decode": {long: 1}},
        {"min_p": long},
        {"temperature": long},
        {"stop": [long, 5]},
        {"n": long},
        {"max_tokens": 10**3000},
        {"min_tokens": 10**3000},
        {"num_speculative_tokens": 10**3000},
        {"stop_token_ids": [10**3000]},
        {"seed": 10**3000},
        {"prompt": [10**3000]},
        {"logit_bias": {long: 1}},
        {"logit_bias": {"5": 10**3000}},
        {"allowed_token_ids": [10**3000]},
        {"response_format": {"type": long}},
        {"structured_outputs": {"json": long}},
        {"structured_outputs": {"json": {"a": 1}, "regex": long}},
    ]
    for body in bodies:
        response = await gateway.post("/v1/completions", {"prompt": "a", **body})
        assert response.status_code in (400, 404), body.keys()
        assert len(response.text) < 800, body.keys()
