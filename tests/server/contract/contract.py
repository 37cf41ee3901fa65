"""Checks answers against the OpenAPI document."""

import copy
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
from jsonschema import Draft202012Validator

from server.contract.document import make_document
from tests.server.gateway import build

EVENT_STREAM = "text/event-stream"
PLACEHOLDER = re.compile(r"\{\w+\}")


class Contract:
    """A document, and validators of its schemas in which no object has an undeclared field.

    Clients must accept more fields than the document has, so that the server can add some. The
    tests do not: a field that the document lacks is a mistake.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._closed = copy.deepcopy(document["components"])
        for schema in self._closed["schemas"].values():
            if "properties" in schema:
                schema.setdefault("additionalProperties", False)
        self._validators: dict[str, Draft202012Validator] = {}

    def operations(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Every (method, path template, operation)."""
        for path, item in self.document["paths"].items():
            for method, operation in item.items():
                yield method.upper(), path, operation

    def operation(self, method: str, path: str) -> dict[str, Any] | None:
        """The operation that answers a request, if the document has one."""
        exact = self.document["paths"].get(path)
        found = [exact] if exact else []
        found += [
            item
            for template, item in longest_first(self.document["paths"])
            if "{" in template and re.fullmatch(PLACEHOLDER.sub(".+", template), path)
        ]
        return next((item[method.lower()] for item in found if method.lower() in item), None)

    def check(self, response: httpx.Response) -> None:
        """Fails if the document does not allow this answer."""
        request = response.request
        operation = self.operation(request.method, request.url.path)
        if operation is None:
            hidden = request.url.path.startswith(HIDDEN) or request.method in ("HEAD", "OPTIONS")
            assert hidden or response.status_code >= 400, f"{request.url.path} is not documented"
            return
        where = f"{request.method} {request.url.path} -> {response.status_code}"
        declared = operation["responses"].get(str(response.status_code))
        assert declared is not None, f"{where}: this status is not in the document"
        for name in response.headers:
            known = name in {header.lower() for header in declared.get("headers", {})}
            assert known or not name.startswith("x-"), f"{where}: undocumented header {name}"
        media_type = response.headers["content-type"].partition(";")[0]
        assert media_type in declared["content"], f"{where}: undocumented type {media_type}"
        schema = declared["content"][media_type]["schema"]
        if media_type == "application/json":
            self.validate(response.json(), schema, where)
        elif media_type == EVENT_STREAM:
            for event in event_data(response.text):
                self.validate(event, schema, where)

    def validate(self, value: Any, schema: dict[str, Any], where: str) -> None:
        """Fails if a value does not have a schema of the document."""
        key = repr(schema)
        if key not in self._validators:
            full = {**schema, "components": self._closed}
            self._validators[key] = Draft202012Validator(full)
        errors = [deepest(error) for error in self._validators[key].iter_errors(value)]
        found = [f"{error.json_path}: {error.message[:300]}" for error in errors]
        assert not found, f"{where}: the document does not have this answer: {found}"


HIDDEN = ("/openapi.json", "/console")
"""Routes that are not in the document."""


def longest_first(paths: dict[str, Any]) -> list[tuple[str, Any]]:
    """The paths in an order in which the first template that matches is the right one."""
    return sorted(paths.items(), key=lambda item: -len(item[0]))


def event_data(text: str) -> Iterator[Any]:
    """The data of the events of a stream, but for its `[DONE]`."""
    for line in text.split("\n"):
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def deepest(error: Any) -> Any:
    """Of the branches of an `anyOf`, the error of the one that fits best."""
    while error.context:
        error = max(error.context, key=lambda e: (len(e.absolute_path), -len(e.schema_path)))
    return error


@cache
def contract() -> Contract:
    """The contract of the application."""
    app, _, _ = build()
    return Contract(make_document(app.routes))


async def check_response(response: httpx.Response) -> None:
    """An event hook of a client in process."""
    await response.aread()
    contract().check(response)
