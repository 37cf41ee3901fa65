"""Schemas of ordinary classes: accepted with a header, refused with `strict`."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from engine_adapter.seam.types import GenerationRequest
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway
from tests.server.schema.pydantic_models import MODELS, Login, Tags

HEADER = "x-specgate-unenforced-keywords"


def asking(schema: dict[str, Any], **fields: Any) -> dict[str, Any]:
    wrapper = {"name": "answer", "schema": schema, **fields}
    return {"response_format": {"type": "json_schema", "json_schema": wrapper}}


@pytest.mark.parametrize(
    ("model", "names"), MODELS.items(), ids=lambda it: getattr(it, "__name__", "")
)
@pytest.mark.parametrize("strict", [None, False])
async def test_a_class_is_accepted_and_the_header_names_what_is_not_enforced(
    gateway: Gateway,
    seen: list[GenerationRequest],
    model: type[BaseModel],
    names: tuple[str, ...],
    strict: bool | None,
) -> None:
    for ask in (gateway.chat, gateway.complete):
        for stream in (False, True):
            response = await ask(**asking(model.model_json_schema(), strict=strict), stream=stream)
            assert response.status_code == 200, response.text
            assert response.headers.get(HEADER, "") == ", ".join(names)
    constraint = seen[0].sampling.structured_output
    assert constraint is not None
    assert constraint.unenforced == names
    enforced = json.loads(constraint.value)
    assert (enforced == model.model_json_schema()) is (not names)


@pytest.mark.parametrize(
    ("model", "names"), MODELS.items(), ids=lambda it: getattr(it, "__name__", "")
)
async def test_strict_refuses_what_cannot_be_enforced(
    gateway: Gateway,
    seen: list[GenerationRequest],
    model: type[BaseModel],
    names: tuple[str, ...],
) -> None:
    response = await gateway.chat(**asking(model.model_json_schema(), strict=True))
    assert response.status_code == (400 if names else 200), response.text
    if names:
        error = response.json()["error"]
        assert error["param"] == "response_format.json_schema.schema"
        assert all(name in error["message"] for name in names)


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"json": Tags.model_json_schema()}},
        {"guided_json": Tags.model_json_schema()},
        {"json_schema": Tags.model_json_schema()},
        {"format": Tags.model_json_schema()},
        {"response_format": {"type": "json_object", "schema": Tags.model_json_schema()}},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_every_field_with_a_schema_says_so(
    gateway: Gateway, start: StartGateway, seen: list[GenerationRequest], fields: dict[str, Any]
) -> None:
    response = await gateway.chat(**fields)
    assert (response.status_code, response.headers[HEADER]) == (200, "uniqueItems")
    constraint = seen[0].sampling.structured_output
    assert constraint is not None
    assert "uniqueItems" not in constraint.value
    strict = await start(strict_fields=True)
    error = (await strict.chat(**fields)).json()["error"]
    assert error["param"] == constraint.param
    assert "uniqueItems" in error["message"]


async def test_the_header_has_a_limit_and_no_line_breaks(
    gateway: Gateway, seen: list[GenerationRequest]
) -> None:
    formats = [f"x\r\nx-evil: {i}" for i in range(500)]
    schema = {"anyOf": [{"type": "string", "format": name} for name in formats]}
    response = await gateway.chat(**asking(schema))
    assert response.status_code == 200
    assert len(response.headers[HEADER]) <= 1024
    assert response.headers[HEADER].startswith("format:x%0D%0Ax-evil:%200, ")
    refused = await gateway.chat(**asking(schema, strict=True))
    assert refused.status_code == 400
    assert len(refused.text) < 800


async def test_a_schema_without_such_keywords_has_no_header(
    gateway: Gateway, seen: list[GenerationRequest]
) -> None:
    properties = {"user": {"type": "string"}, "format": {"type": "string"}}
    assert HEADER not in (await gateway.chat(**asking({"properties": properties}))).headers
    assert HEADER not in (await gateway.chat()).headers
    assert HEADER in (await gateway.chat(**asking(Login.model_json_schema()))).headers


async def test_a_schema_that_is_too_deep_is_refused(gateway: Gateway) -> None:
    deep = '{"items":' * 100_000 + "{}" + "}" * 100_000
    body = '{"prompt": "a", "structured_outputs": {"json": ' + json.dumps(deep) + "}}"
    response = await gateway.client.post(
        "/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "structured_outputs.json"


async def test_a_huge_count_of_items_reaches_no_engine(
    gateway: Gateway, seen: list[GenerationRequest]
) -> None:
    many = {"type": "array", "items": {"type": "integer"}, "maxItems": 100_000_000}
    response = await gateway.chat(structured_outputs={"json": many})
    assert (response.status_code, response.headers[HEADER]) == (200, "maxItems")
    (request,) = seen
    assert request.sampling.structured_output is not None
    assert "maxItems" not in request.sampling.structured_output.value
    hidden = {"type": "object", "properties": {"a": {"$ref": "#/x"}}, "x": many}
    for fields, param in (
        ({"structured_outputs": {"json": hidden}}, "structured_outputs.json"),
        ({"json_schema": hidden}, "json_schema"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": hidden}}],
                "tool_choice": "required",
            },
            "tools.0.function.parameters",
        ),
    ):
        refused = await gateway.chat(**fields)
        assert refused.status_code == 400, refused.text
        error = refused.json()["error"]
        assert error["param"] == param
        assert "minItems and maxItems add up to more than 2,000" in error["message"]
    assert len(seen) == 1
