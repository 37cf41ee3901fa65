"""`POST /v1/responses`, and the stored responses."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.convertors import StringConvertor, register_url_convertor

from server.contract.answers import (
    GENERATION_HEADERS,
    KEY_LIMIT_ERRORS,
    LIMIT_ERRORS,
    answers,
    generation_answers,
)
from server.errors import InvalidField
from server.http.auth import key_name, key_owner
from server.http.event_stream import EventStream
from server.http.headers import IGNORED_FIELDS
from server.openai.request import Origin
from server.openai.respond import GenerationResponse
from server.openai.responses import prepare, retrieval
from server.openai.responses.background import start_in_background
from server.openai.responses.builder import ResponsesBuilder
from server.openai.responses.compaction import CompactionBuilder, prepare_compaction
from server.openai.responses.response_object import keep
from server.schema import response_answers as schema
from server.schema.generation_body import MAX_INT
from server.schema.response_events import ResponseEvent
from server.schema.responses import (
    MAX_PAGE,
    PAGE,
    CompactRequest,
    CountInputRequest,
    Includable,
    ResponsesRequest,
)
from server.state import ReadyRuntime, Runtime, StartedRuntime


class _StoredId(StringConvertor):
    """The id of a response: no other route below `/v1/responses` has this path."""

    regex = "(?!(input_tokens|compact)$)[^/]+"


register_url_convertor("stored", _StoredId())
router = APIRouter(tags=["Responses"])


@router.post(
    "/v1/responses",
    response_model=None,
    responses=answers(
        schema.ResponseObject,
        events=(ResponseEvent,),
        headers=GENERATION_HEADERS,
        id_for=dict.fromkeys(
            ("retrieve_response", "list_input_items", "cancel_response", "delete_response"),
            "response_id",
        ),
        errors={
            404: "model_not_found, response_not_found, conversation_not_found",
            **LIMIT_ERRORS,
        },
    ),
)
async def create_response(
    request: Request, body: ResponsesRequest, runtime: ReadyRuntime
) -> Response:
    """Answers the input, or continues an earlier response."""
    owner, store = _owner(request), runtime.responses
    prepared = await prepare.prepare_response(runtime, body, owner)
    if not body.background:
        builder = partial(ResponsesBuilder, partial(keep, store, prepared), prepared)
        return GenerationResponse(runtime, prepared.request, builder)
    origin = Origin(request.headers, key_name(request.scope))
    run = await start_in_background(runtime, prepared, origin)
    headers = prepared.request.headers()
    if body.stream:
        return _events(runtime, retrieval.EventReader(run.follow(0), 0), headers)
    return Response(run.snapshot().body, media_type="application/json", headers=headers)


@router.post(
    "/v1/responses/input_tokens",
    response_model=None,
    responses=answers(
        schema.InputTokenCount,
        headers=(IGNORED_FIELDS,),
        errors={404: "model_not_found, conversation_not_found", **KEY_LIMIT_ERRORS},
    ),
)
async def count_input_tokens(
    request: Request, body: CountInputRequest, runtime: ReadyRuntime
) -> Response:
    """The tokens of a response's input."""
    count, checked = await prepare.count_input_tokens(runtime, body, _owner(request))
    content = {"object": "response.input_tokens", "input_tokens": count}
    return JSONResponse(content, headers=checked.headers())


@router.post(
    "/v1/responses/compact",
    response_model=None,
    responses=generation_answers(schema.CompactedResponse),
)
async def compact_conversation(
    request: Request, body: CompactRequest, runtime: ReadyRuntime
) -> Response:
    """The conversation as its user's messages and a summary, to be sent as a later input."""
    prepared, messages = await prepare_compaction(runtime, body, _owner(request))
    builder = partial(CompactionBuilder, messages, prepared)
    return GenerationResponse(runtime, prepared.request, builder)


@router.get(
    "/v1/responses/{response_id:stored}",
    operation_id="retrieve_response",
    response_model=None,
    responses=answers(
        schema.ResponseObject,
        events=(ResponseEvent,),
        errors={400: "unsupported_parameter", 404: "response_not_found"},
    ),
)
async def get_response(
    request: Request,
    response_id: str,
    runtime: StartedRuntime,
    include: Annotated[list[Includable] | None, Query(alias="include[]")] = None,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0, le=MAX_INT)] = None,
) -> Response:
    """A stored response, or the events of one that runs, or ran, in the background."""
    store, owner = runtime.responses, _owner(request)
    if stream:
        reader = retrieval.read_events(store, response_id, owner, starting_after)
        return _events(runtime, reader)
    if starting_after is not None:
        raise InvalidField("starting_after", "starting_after needs stream=true.")
    content = retrieval.retrieve(store, response_id, owner, include or ())
    return Response(content, media_type="application/json")


@router.delete(
    "/v1/responses/{response_id:stored}",
    response_model=None,
    responses=answers(schema.DeletedResponse, errors={404: "response_not_found"}),
)
async def delete_response(
    request: Request, response_id: str, runtime: StartedRuntime
) -> dict[str, Any]:
    """Deletes a stored response."""
    return await retrieval.delete(runtime.responses, response_id, _owner(request))


@router.post(
    "/v1/responses/{response_id}/cancel",
    response_model=None,
    responses=answers(schema.ResponseObject, errors={400: "", 404: "response_not_found"}),
)
async def cancel_response(request: Request, response_id: str, runtime: StartedRuntime) -> Response:
    """Cancels a response that runs in the background."""
    content = await retrieval.cancel(runtime.responses, response_id, _owner(request))
    return Response(content, media_type="application/json")


@router.get(
    "/v1/responses/{response_id}/input_items",
    operation_id="list_input_items",
    response_model=None,
    responses=answers(
        schema.InputItemList, errors={400: "unsupported_parameter", 404: "response_not_found"}
    ),
)
async def get_input_items(
    request: Request,
    response_id: str,
    runtime: StartedRuntime,
    after_id: Annotated[str | None, Query(alias="after")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = PAGE,
    order: Literal["asc", "desc"] = "desc",
    before_id: Annotated[str | None, Query(alias="before", include_in_schema=False)] = None,
) -> dict[str, Any]:
    """The items that a stored response was generated from."""
    if before_id is not None:
        message = "before is not supported; send after, with the other order."
        raise InvalidField("before", message, "unsupported_parameter")
    return retrieval.list_input(
        runtime.responses,
        response_id,
        _owner(request),
        after_id=after_id,
        limit=limit,
        newest_first=order == "desc",
    )


def _owner(request: Request) -> str:
    return key_owner(request.scope)


def _events(
    runtime: Runtime, reader: retrieval.EventReader, headers: Mapping[str, str] | None = None
) -> EventStream:
    return EventStream(
        reader.events(),
        keepalive_s=runtime.settings.keepalive_s,
        headers=headers,
        on_failure=reader.failure,
    )
