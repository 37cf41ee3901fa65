"""What a route declares of its answers. It is for the OpenAPI document only: nothing is validated.

A model of `server.schema.answers` and its siblings describes a body; the body itself is made
without it. A route declares what only it knows. `server.contract.document` adds what follows from
its body, its dependencies and its path: 400, 401, 403, 413, 500 and 503.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from server.http.headers import IGNORED_FIELDS, REQUEST_ID, SPEC_METHOD

Answers = dict[int | str, dict[str, Any]]
"""Status -> answer, as FastAPI's `responses` has it."""

EVENT_STREAM = "text/event-stream"
SCHEMAS = "#/components/schemas/{model}"
GENERATION_HEADERS = (SPEC_METHOD, IGNORED_FIELDS)
ERROR = "ErrorResponse"
"""The name of the schema that every error has."""


def answers(
    model: type[BaseModel] | None = None,
    *,
    events: type[BaseModel] | None = None,
    texts: Sequence[str] = (),
    headers: Sequence[str] = (),
    errors: Mapping[int, str] | None = None,
) -> Answers:
    """The answers of a route, for its `responses`.

    Args:
        model: the JSON body of a 200; not needed if the route has a response model.
        events: the data of each event of a stream, if the route can stream.
        texts: media types of bodies that are texts.
        headers: headers of a 200 besides the request's id.
        errors: status -> the codes that the route itself raises, separated by commas.
    """
    content: dict[str, Any] = {text: {"schema": {"type": "string"}} for text in texts}
    success: dict[str, Any] = {"headers": header_references(headers)}
    if events is not None:
        content[EVENT_STREAM] = {"schema": _events(events)}
        success["description"] = (
            "The whole answer, or with `stream` its events. `data` of each is a "
            f"{events.__name__}, or an error if the stream fails; the last is `[DONE]`."
        )
    if content:
        success["content"] = content
    if model is not None:
        success["model"] = model
    found: Answers = {200: success}
    for status, codes in (errors or {}).items():
        found[status] = {"description": code_list(codes)}
    return found


def header_references(names: Sequence[str]) -> dict[str, Any]:
    """Name -> reference to its description, the request's id included."""
    return {name: {"$ref": f"#/components/headers/{name}"} for name in (REQUEST_ID, *names)}


def code_list(codes: str) -> str:
    """Codes of errors, separated by commas, as a description shows them."""
    return ", ".join(f"`{code.strip()}`" for code in codes.split(","))


def _events(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of an event; `$defs` has the schemas that the document does not have yet."""
    references, definitions = models_json_schema([(model, "serialization")], ref_template=SCHEMAS)
    error = {"$ref": SCHEMAS.format(model=ERROR)}
    found = {"anyOf": [references[model, "serialization"], error]}
    return found | {"$defs": definitions["$defs"]}
