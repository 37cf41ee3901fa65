"""`make_document`: the OpenAPI document of the application's routes.

FastAPI makes the parameters, the bodies and the schemas. What it cannot know is added here: the
errors in OpenAI's format instead of its own 422, keys, headers, and names for generated clients.
"""

import asyncio
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from server import __version__
from server.contract.answers import ERROR, MESSAGE_ERROR, SCHEMAS, code_list, header_references
from server.errors import MESSAGES_PATH
from server.http.auth import ADMIN_PATHS, METRICS_PATH, OPEN_PATHS
from server.http.headers import REQUEST_ID, RESPONSE_HEADERS, RETRY_AFTER, TRACE_ID
from server.http.middleware import is_traced
from server.schema.answers import ErrorResponse
from server.state import get_ready_runtime, get_runtime, get_started_state

DESCRIPTION = """\
OpenAI's API for one model, on an engine with several speculative-decoding proposers.

Every error is an `ErrorResponse`, of `/v1/messages` a `MessageError`. A field may be null where
that means "not set".
The limits of a connection refuse with one too: 400, 408, 414, 431 and 503, without a request id.
Keys apply only if the server has some: without API keys every route but the admin routes is open,
and without any key these answer the server's own machine only. docs/api.md has the details.
"""

TAGS = {
    "Chat": "Answers chats.",
    "Messages": "Answers chats in Anthropic's format.",
    "Responses": "Answers chats under OpenAI's newer API, and stores the answers.",
    "Completions": "Continues texts.",
    "Models": "The served names.",
    "Batches": "Files of requests, and their answers in the background.",
    "Tokens": "Text to token ids and back.",
    "Server": "Probes, versions and metrics.",
    "Speculation": "The active method, proposers, policies and routing rules (admin).",
    "Adapters": "Loads and unloads LoRA adapters (admin).",
}
"""Every tag of the routes, and what its routes are for."""

API_KEY, ADMIN_KEY, METRICS_KEY = "ApiKey", "AdminKey", "MetricsKey"

_SECURITY = {
    API_KEY: {"type": "http", "scheme": "bearer", "description": "a key of `--api-key`"},
    ADMIN_KEY: {"type": "http", "scheme": "bearer", "description": "a key of `--admin-key`"},
    METRICS_KEY: {"type": "http", "scheme": "bearer", "description": "a key of `--metrics-key`"},
}
_BAD_BODY = "The body is not valid; `param` names the field, `code` may be null."
_RETRYABLE = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_NOT_OURS = ("HTTPValidationError", "ValidationError")


class EncodedDocument:
    """The document of an application as JSON, made at the first call and then kept."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._making: asyncio.Task[bytes] | None = None

    async def encoded(self) -> bytes:
        """The document. All who ask for it first wait for the same thread, so no stream does."""
        if self._making is None:
            self._making = asyncio.create_task(asyncio.to_thread(self._make))
        return await asyncio.shield(self._making)

    def _make(self) -> bytes:
        return bytes(JSONResponse(make_document(self._app.routes)).body)


def make_document(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """The document of the routes that are not hidden (`include_in_schema`)."""
    visible_routes = [r for r in routes if isinstance(r, APIRoute) and r.include_in_schema]
    document = get_openapi(
        title="Specgate",
        version=__version__,
        description=DESCRIPTION,
        routes=visible_routes,
        tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        servers=[{"url": "/"}],
        license_info={"name": "Apache 2.0", "identifier": "Apache-2.0"},
    )
    for route in visible_routes:
        for method in route.methods:
            operation = document["paths"][route.path_format][method.lower()]
            _complete(operation, route)
            if is_traced(method, route.path):
                for response in operation["responses"].values():
                    response["headers"] |= header_references((TRACE_ID,))
    components = document["components"]
    components["schemas"] = _schemas(document)
    components["securitySchemes"] = _SECURITY
    components["headers"] = {
        name: {"description": text, "required": name == REQUEST_ID, "schema": {"type": "string"}}
        for name, text in RESPONSE_HEADERS.items()
    }
    return document


def _complete(operation: dict[str, Any], route: APIRoute) -> None:
    operation["operationId"] = route.operation_id or route.name
    summary, _, details = operation.pop("description", "").partition("\n\n")
    operation["summary"] = " ".join(summary.split()).rstrip(".")
    if details:
        operation["description"] = details
    operation["security"] = _security(route.path)
    responses: dict[str, Any] = operation["responses"]
    responses.pop("422", None)
    for error, text in _own_errors(route):
        response = responses.setdefault(str(error.value), {})
        description = response.get("description")
        response["description"] = f"{text}, {description}" if description else text
    for status, response in responses.items():
        if int(status) >= HTTPStatus.BAD_REQUEST:
            _describe_error(int(status), response, route.path)
        else:
            response.setdefault("headers", header_references(()))
    operation["responses"] = dict(sorted(responses.items()))


def _security(path: str) -> list[dict[str, list[str]]]:
    if path in OPEN_PATHS:
        return []
    if path in ADMIN_PATHS:
        return [{ADMIN_KEY: []}]
    keys: list[dict[str, list[str]]] = [{API_KEY: []}, {ADMIN_KEY: []}]
    return [*keys, {METRICS_KEY: []}] if path == METRICS_PATH else keys


def _own_errors(route: APIRoute) -> Iterator[tuple[HTTPStatus, str]]:
    """The errors that follow from a route's path, body and dependencies."""
    if route.path not in OPEN_PATHS:
        yield HTTPStatus.UNAUTHORIZED, code_list("invalid_api_key")
        is_admin = route.path in ADMIN_PATHS
        forbidden_code = "admin_disabled" if is_admin else "host_not_allowed"
        yield HTTPStatus.FORBIDDEN, code_list(forbidden_code)
    if route.body_field is not None:
        yield HTTPStatus.BAD_REQUEST, _BAD_BODY
        yield HTTPStatus.REQUEST_TIMEOUT, code_list("slow_client")
        yield HTTPStatus.REQUEST_ENTITY_TOO_LARGE, code_list("request_too_large")
        yield HTTPStatus.SERVICE_UNAVAILABLE, code_list("too_many_bodies")
    yield HTTPStatus.INTERNAL_SERVER_ERROR, code_list("internal_error")
    dependencies = {dependency.call for dependency in route.dependant.dependencies}
    if get_ready_runtime in dependencies:
        yield HTTPStatus.SERVICE_UNAVAILABLE, code_list("engine_not_ready, engine_dead, stopping")
    elif dependencies & {get_runtime, get_started_state}:
        yield HTTPStatus.SERVICE_UNAVAILABLE, code_list("engine_not_ready, stopping")


def _describe_error(status: int, response: dict[str, Any], path: str) -> None:
    retries = (RETRY_AFTER,) if status in _RETRYABLE else ()
    model = MESSAGE_ERROR if path.startswith(MESSAGES_PATH) else ERROR
    reference = {"$ref": SCHEMAS.format(model=model)}
    response["headers"] = header_references(retries)
    response["content"] = {"application/json": {"schema": reference}}
    response.setdefault("description", HTTPStatus(status).phrase)


def _schemas(document: dict[str, Any]) -> dict[str, Any]:
    """All schemas by name, those included that a stream's events have brought with them."""
    schemas: dict[str, Any] = document["components"].get("schemas", {})
    for name in _NOT_OURS:
        schemas.pop(name, None)
    _, error = models_json_schema([(ErrorResponse, "serialization")], ref_template=SCHEMAS)
    brought = [error["$defs"], *_pop_definitions(document["paths"])]
    for name, schema in (item for definitions in brought for item in definitions.items()):
        if schemas.setdefault(name, schema) != schema:
            raise ValueError(f"two different schemas are called {name}: rename one of the models")
    return dict(sorted(schemas.items()))


def _pop_definitions(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if "$defs" in node:
            yield node.pop("$defs")
        for value in node.values():
            yield from _pop_definitions(value)
    elif isinstance(node, list):
        for value in node:
            yield from _pop_definitions(value)
