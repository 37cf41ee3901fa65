"""What a route declares of its answers. It is for the OpenAPI document only: nothing is validated.

A model of `server.schema.answers` and its siblings describes a body; the body itself is made
without it. A route declares what only it knows. `server.contract.document` adds what follows from
its body, its dependencies and its path: 400, 401, 403, 408, 413, 500 and 503.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from types import UnionType
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from server.control.admission.limit_errors import KEY_LIMIT_CODES, LIMIT_CODES
from server.http.headers import (
    ACCEPTED_DRAFT_TOKENS,
    DRAFT_TOKENS,
    IGNORED_FIELDS,
    REQUEST_ID,
    SPEC_METHOD,
    UNENFORCED_KEYWORDS,
)

Answers = dict[int | str, dict[str, Any]]
"""Status -> answer, as FastAPI's `responses` has it."""

BINARY = "application/octet-stream"
EVENT_STREAM = "text/event-stream"
SCHEMAS = "#/components/schemas/{model}"
GENERATION_HEADERS = (
    SPEC_METHOD,
    DRAFT_TOKENS,
    ACCEPTED_DRAFT_TOKENS,
    IGNORED_FIELDS,
    UNENFORCED_KEYWORDS,
)
LIMIT_ERRORS = {
    status: ", ".join((*codes, *(["drain_aborted"] if status == 503 else [])))
    for status, codes in LIMIT_CODES.items()
}
"""The errors with which a limit or a drain ends a request that generates."""
KEY_LIMIT_ERRORS = {429: ", ".join(KEY_LIMIT_CODES)}
"""The errors with which a limit of an API key refuses a request that does not generate."""
ERROR = "ErrorResponse"
MESSAGE_ERROR = "MessageError"
"""The names of the schemas of errors: of most paths, and of `/v1/messages`."""


def answers(
    model: type[BaseModel] | UnionType | None = None,
    *,
    events: Sequence[type[BaseModel]] = (),
    texts: Sequence[str] = (),
    binary: str = "",
    headers: Sequence[str] = (),
    id_for: Mapping[str, str] | None = None,
    errors: Mapping[int, str] | None = None,
) -> Answers:
    """The answers of a route, for its `responses`.

    Args:
        model: the JSON body of a 200; not needed if the route has a response model.
        events: what the data of an event of a stream can be, if the route can stream.
        texts: media types of bodies that are texts.
        binary: media type of a body of any bytes.
        headers: headers of a 200 besides the request's id.
        id_for: operation -> its parameter that takes the `id` of a 200's body.
        errors: status -> the codes that the route itself raises, separated by commas; empty for
            an error without a code.
    """
    content: dict[str, Any] = {text: {"schema": {"type": "string"}} for text in texts}
    if binary:
        content[binary] = {"schema": {"type": "string", "format": "binary"}}
    success: dict[str, Any] = {"headers": header_references(headers)}
    if events:
        content[EVENT_STREAM] = {"schema": _events(events)}
        names = " or ".join(event.__name__ for event in events)
        success["description"] = (
            f"The whole answer, or with `stream` its events: the data of each is a {names}."
        )
    if id_for:
        success["links"] = _links(id_for)
    if content:
        success["content"] = content
    if model is not None:
        success["model"] = model
    responses: Answers = {200: success} if model is not None or content or headers else {}
    for status, codes in (errors or {}).items():
        description = code_list(codes) if codes else HTTPStatus(status).phrase
        responses[status] = {"description": description}
    return responses


def generation_answers(
    model: type[BaseModel] | UnionType | None, events: Sequence[type[BaseModel]] = ()
) -> Answers:
    """The answers of a route whose request is generated; see `answers`."""
    errors = {404: "model_not_found", **LIMIT_ERRORS}
    return answers(model, events=events, headers=GENERATION_HEADERS, errors=errors)


def header_references(names: Sequence[str]) -> dict[str, Any]:
    """Name -> reference to its description, the request's id included."""
    return {name: {"$ref": f"#/components/headers/{name}"} for name in (REQUEST_ID, *names)}


def code_list(codes: str) -> str:
    """Codes of errors, separated by commas, as a description shows them."""
    return ", ".join(f"`{code.strip()}`" for code in codes.split(","))


def _links(id_for: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: {"operationId": name, "parameters": {parameter: "$response.body#/id"}}
        for name, parameter in id_for.items()
    }


def _events(models: Sequence[type[BaseModel]]) -> dict[str, Any]:
    """The schema of an event; `$defs` has the schemas that the document does not have yet."""
    keys: list[tuple[type[BaseModel], Literal["serialization"]]] = [
        (model, "serialization") for model in models
    ]
    references, definitions = models_json_schema(keys, ref_template=SCHEMAS)
    schemas = [references[key] for key in keys]
    schema = {"anyOf": schemas} if len(schemas) > 1 else schemas[0]
    return {**schema, "$defs": definitions["$defs"]}
