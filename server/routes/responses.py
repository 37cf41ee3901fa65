"""`POST /v1/responses`, and the stored responses."""

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from server.contract.answers import GENERATION_HEADERS, LIMIT_ERRORS, answers
from server.errors import InvalidField
from server.http.auth import key_owner
from server.openai.respond import GenerationResponse
from server.openai.responses import retrieval
from server.openai.responses.builder import ResponsesBuilder
from server.openai.responses.prepare import prepare_response
from server.schema import response_answers as schema
from server.schema.response_events import ResponseEvent
from server.schema.responses import MAX_PAGE, PAGE, Includable, ResponsesRequest
from server.state import ReadyRuntime, StartedRuntime

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
        errors={404: "model_not_found, response_not_found", **LIMIT_ERRORS},
    ),
)
async def create_response(
    request: Request, body: ResponsesRequest, runtime: ReadyRuntime
) -> Response:
    """Answers the input, or continues an earlier response."""
    prepared = await prepare_response(runtime, body, _owner(request))
    builder = partial(ResponsesBuilder, runtime.responses, prepared)
    return GenerationResponse(runtime, prepared.request, builder)


@router.get(
    "/v1/responses/{response_id}",
    operation_id="retrieve_response",
    response_model=None,
    responses=answers(
        schema.ResponseObject, errors={400: "unsupported_parameter", 404: "response_not_found"}
    ),
)
async def get_response(
    request: Request,
    response_id: str,
    runtime: StartedRuntime,
    include: Annotated[list[Includable] | None, Query(alias="include[]")] = None,
    stream: bool = False,
    starting_after: int | None = None,
) -> Response:
    """A stored response."""
    if stream or starting_after is not None:
        raise InvalidField(
            "stream" if stream else "starting_after",
            "A stored response is returned in one piece: leave stream and starting_after out.",
            "unsupported_parameter",
        )
    content = retrieval.retrieve(runtime.responses, response_id, _owner(request), include or ())
    return Response(content, media_type="application/json")


@router.delete(
    "/v1/responses/{response_id}",
    response_model=None,
    responses=answers(schema.DeletedResponse, errors={404: "response_not_found"}),
)
async def delete_response(
    request: Request, response_id: str, runtime: StartedRuntime
) -> dict[str, Any]:
    """Deletes a stored response."""
    return retrieval.delete(runtime.responses, response_id, _owner(request))


@router.post(
    "/v1/responses/{response_id}/cancel",
    # Nothing can be cancelled, so there is no success.
    status_code=400,
    response_model=None,
    responses=answers(errors={400: "", 404: "response_not_found"}),
)
async def cancel_response(request: Request, response_id: str, runtime: StartedRuntime) -> None:
    """Refused: no response runs in the background."""
    retrieval.cancel(runtime.responses, response_id, _owner(request))


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
