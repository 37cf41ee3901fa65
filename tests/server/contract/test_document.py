"""The OpenAPI document: valid, complete, named for clients, and the same from every server."""

import asyncio
import json
import re
import runpy
import sys
import threading
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import BaseModel

from server.contract.answers import answers
from server.contract.document import TAGS, make_document
from server.http.auth import ADMIN_PATHS, METRICS_PATH, OPEN_PATHS
from server.http.headers import NUM_SPECULATIVE_TOKENS, PROPOSER, RESPONSE_HEADERS
from server.schema.anthropic import MessagesRequest
from server.schema.base import INSTEAD, REFUSED, Body, Refused
from server.schema.chat import ChatCompletionRequest, TokenizeRequest
from server.schema.completions import CompletionRequest
from server.schema.responses import ResponsesRequest
from tests import documentation
from tests.server.contract.contract import Contract, contract
from tests.server.gateway import Gateway, build

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return contract().document


def operation(path: str, method: str = "post") -> dict[str, Any]:
    found: dict[str, Any] = contract().document["paths"][path][method]
    return found


async def test_the_document_is_made_once_for_all_who_ask_at_once(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def counted(routes: Any) -> dict[str, Any]:
        made.append(threading.current_thread().name)
        return make_document(routes)

    monkeypatch.setattr("server.contract.document.make_document", counted)
    answers = await asyncio.gather(
        *(gateway.client.get("/openapi.json") for _ in range(20)),
    )
    assert len({answer.content for answer in answers}) == 1
    assert answers[0].headers["content-type"] == "application/json"
    assert len(made) == 1
    assert made != [threading.main_thread().name]


async def test_the_server_sends_what_the_command_writes(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "openapi.json"
    monkeypatch.setattr(sys, "argv", ["contract", str(file)])
    runpy.run_module("server.contract", run_name="__main__")
    response = await gateway.client.get("/openapi.json")
    assert response.json() == json.loads(file.read_text("utf-8"))


def test_it_is_valid_openapi(document: dict[str, Any]) -> None:
    OpenAPIV31SpecValidator(document).validate()
    assert document["openapi"].startswith("3.1.")


def test_an_invalid_document_is_found(document: dict[str, Any]) -> None:
    broken = json.loads(json.dumps(document))
    del broken["paths"]["/v1/models"]["get"]["responses"]["200"]["description"]
    with pytest.raises(Exception, match="description"):
        OpenAPIV31SpecValidator(broken).validate()


def test_it_has_every_route_but_the_consoles_and_its_own() -> None:
    app, _, _ = build()
    routes = {(m, r.path_format) for r in app.routes for m in r.methods}  # type: ignore[attr-defined]
    have = {(method, path) for method, path, _ in contract().operations()}
    hidden = {(m, p) for m, p in routes if m == "HEAD" or p.startswith("/console")}
    assert routes - have - hidden == {("GET", "/openapi.json")}
    assert have <= routes


def test_no_answer_is_fastapis_own(document: dict[str, Any]) -> None:
    assert "422" not in json.dumps(document)
    assert "HTTPValidationError" not in json.dumps(document)
    for method, path, found in contract().operations():
        for status, response in found["responses"].items():
            for content in response["content"].values():
                assert content["schema"], (method, path, status)
            if status >= "400":
                name = "MessageError" if path.startswith("/v1/messages") else "ErrorResponse"
                reference = {"$ref": f"#/components/schemas/{name}"}
                assert response["content"] == {"application/json": {"schema": reference}}


def test_operations_are_named_for_generated_clients(document: dict[str, Any]) -> None:
    ids = [found["operationId"] for _, _, found in contract().operations()]
    assert len(set(ids)) == len(ids)
    assert [i for i in ids if not re.fullmatch(r"[a-z]+(_[a-z]+)*", i)] == []
    for _, _, found in contract().operations():
        assert len(found["tags"]) == 1
        assert found["tags"][0] in TAGS
        assert found["summary"][0].isupper()
        assert "\n" not in found["summary"]
    assert {t["name"] for t in document["tags"]} == {
        tag for _, _, found in contract().operations() for tag in found["tags"]
    }


def test_keys_are_declared(document: dict[str, Any]) -> None:
    assert set(document["components"]["securitySchemes"]) == {*("ApiKey", "AdminKey", "MetricsKey")}
    for _, path, found in contract().operations():
        named = [name for requirement in found["security"] for name in requirement]
        if path in OPEN_PATHS:
            assert named == []
            assert "401" not in found["responses"]
        elif path in ADMIN_PATHS:
            assert named == ["AdminKey"]
            assert {"401", "403"} <= set(found["responses"])
        else:
            metrics = ["MetricsKey"] if path == METRICS_PATH else []
            assert named == ["ApiKey", "AdminKey", *metrics]
            assert "host_not_allowed" in found["responses"]["403"]["description"]


def test_a_prompt_and_a_stop_have_all_their_forms(document: dict[str, Any]) -> None:
    fields = document["components"]["schemas"]["CompletionRequest"]["properties"]
    forms = {
        json.dumps([form["type"], form.get("items", {}).get("type")])
        for form in fields["prompt"]["anyOf"]
    }
    assert forms == {
        '["string", null]',
        '["array", "integer"]',
        '["array", "string"]',
        '["array", "array"]',
    }
    assert [form["type"] for form in fields["stop"]["anyOf"]] == ["string", "array", "null"]


def test_fields_of_a_response_are_as_they_are_taken(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    fields = schemas["Reasoning"]["properties"]
    assert set(fields["effort"]["anyOf"][0]["enum"]) >= {"none", "low", "high"}
    assert set(fields["summary"]["anyOf"][0]["enum"]) == {"auto", "concise", "detailed"}
    assert {form.get("const") for form in fields["generate_summary"]["anyOf"]} == {"auto", None}
    assert "type" not in schemas["MessageItem"].get("required", ())
    for name in ("prompt_logprobs", "response_format"):
        assert schemas["ResponsesRequest"]["properties"][name]["type"] == "null"
    shown = schemas["ResponseReasoning"]["properties"]["summary"]
    assert shown["anyOf"] == fields["summary"]["anyOf"]


def test_a_stream_is_described(document: dict[str, Any]) -> None:
    for path, chunk in (
        ("/v1/chat/completions", "ChatCompletionChunk"),
        ("/v1/completions", "CompletionChunk"),
    ):
        content = operation(path)["responses"]["200"]["content"]
        assert set(content) == {"application/json", "text/event-stream"}
        kinds = [form["$ref"] for form in content["text/event-stream"]["schema"]["anyOf"]]
        assert kinds == [f"#/components/schemas/{name}" for name in (chunk, "ErrorResponse")]
        assert chunk in document["components"]["schemas"]


def test_metrics_are_text() -> None:
    content = operation("/metrics", "get")["responses"]["200"]["content"]
    assert set(content) == {"text/plain", "application/openmetrics-text"}


def test_every_code_is_in_the_documentation(document: dict[str, Any]) -> None:
    api = (ROOT / "docs" / "api.md").read_text("utf-8")
    codes: set[str] = set()
    for _, _, found in contract().operations():
        for status, response in found["responses"].items():
            if status >= "400":
                codes |= set(re.findall(r"`([a-z]+_[a-z_]+|stopping)`", response["description"]))
    assert len(codes) > 20
    assert documentation.missing(api, codes) == []


def test_every_header_of_ours_is_listed() -> None:
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "server").rglob("*.py"))
    sent = set(re.findall(r'"(x-specgate-[a-z-]+)"', sources))
    assert len(sent) >= 2
    assert sent - {*RESPONSE_HEADERS, PROPOSER, NUM_SPECULATIVE_TOKENS} == set()


def test_every_schema_has_a_name_of_its_own(document: dict[str, Any]) -> None:
    names = document["components"]["schemas"]
    assert [name for name in names if not re.fullmatch(r"[A-Za-z]+(-Input|-Output)?", name)] == []
    # What generated clients use themselves.
    assert not {"Response", "Request", "Error", "Client"} & set(names)


def test_two_different_schemas_of_one_name_are_refused() -> None:
    class Usage(BaseModel):
        """Another one."""

        x: int

    app = FastAPI()

    @app.get("/x", responses=answers(events=(Usage,)))
    async def get_x() -> None:
        """X."""

    routes = [*build()[0].routes, *(r for r in app.routes if isinstance(r, APIRoute))]
    with pytest.raises(ValueError, match="Usage"):
        make_document(routes)


def test_an_undocumented_field_is_found() -> None:
    schema = {"$ref": "#/components/schemas/DetokenizeResponse"}
    contract().validate({"prompt": "x"}, schema, "here")
    for wrong in ({}, {"prompt": 1}, {"prompt": "x", "more": 1}):
        with pytest.raises(AssertionError, match="here"):
            contract().validate(wrong, schema, "here")


def test_a_description_of_the_same_routes_is_the_same() -> None:
    app, _, _ = build()
    assert Contract(make_document(app.routes)).document == contract().document


@pytest.mark.parametrize(
    "kind",
    [ChatCompletionRequest, CompletionRequest, ResponsesRequest, MessagesRequest, TokenizeRequest],
)
def test_a_body_says_what_is_refused(document: dict[str, Any], kind: type[Body]) -> None:
    properties = document["components"]["schemas"][kind.__name__]["properties"]
    declared_names = {field.alias or name for name, field in kind.model_fields.items()}
    of_routes = set(kind.of_other_routes) - declared_names
    for field, neutral in REFUSED.items():
        if field in declared_names:
            continue
        schema = properties[field]
        assert schema["description"].startswith("Refused by this server; ")
        assert INSTEAD.get(field, "leave it out") in schema["description"] or field in of_routes
        accepts = jsonschema.Draft202012Validator(schema).is_valid
        assert accepts(None)
        assert not accepts("odd")
        assert all(accepts(value) != (field in of_routes) for value in neutral)
    assert of_routes <= set(properties)
    refused_names = {
        field for field, schema in properties.items() if "Refused" in schema.get("description", "")
    }
    honoured_names = {
        field
        for field in declared_names
        if not any(isinstance(part, Refused) for part in metadata_of(kind, field))
    }
    assert not refused_names & honoured_names
    assert len(refused_names) > 30


def metadata_of(kind: type[Body], field: str) -> list[Any]:
    """What annotates a declared field."""
    return [
        part
        for name, info in kind.model_fields.items()
        if field in (name, info.alias)
        for part in info.metadata
    ]
