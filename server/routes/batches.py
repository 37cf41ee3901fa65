"""`/v1/batches`: files of requests, answered in the background."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from server.batches.shown import batch_object, list_object, page
from server.contract.answers import KEY_LIMIT_ERRORS, answers
from server.http.auth import key_owner
from server.schema.batches import (
    BATCHES_PAGE,
    MAX_BATCHES_PAGE,
    BatchList,
    BatchObject,
    BatchRequest,
)
from server.state import StartedState

router = APIRouter(tags=["Batches"])

_DISABLED = "files_disabled"


@router.post(
    "/v1/batches",
    response_model=None,
    responses=answers(
        BatchObject,
        id_for=dict.fromkeys(("retrieve_batch", "cancel_batch"), "batch_id"),
        errors={
            400: "file_quota_exceeded",
            404: "file_not_found",
            409: _DISABLED,
            429: f"{KEY_LIMIT_ERRORS[429]}, batch_limit_exceeded",
            503: "files_unavailable",
        },
    ),
)
async def create_batch(request: Request, body: BatchRequest, state: StartedState) -> dict[str, Any]:
    """Answers the requests of a file in the background."""
    batches = state.enabled_batches()
    batch = await batches.store.create(key_owner(request.scope), body)
    batches.wake()
    return batch_object(batch)


@router.get(
    "/v1/batches",
    operation_id="list_batches",
    response_model=None,
    responses=answers(BatchList, errors={400: "", 409: _DISABLED}),
)
async def get_batches(
    request: Request,
    state: StartedState,
    after_id: Annotated[str | None, Query(alias="after")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_BATCHES_PAGE)] = BATCHES_PAGE,
) -> dict[str, Any]:
    """The batches of the key, the newest first."""
    of_key = state.enabled_batches().store.of_owner(key_owner(request.scope))
    listed_batches, has_more = page(of_key, after_id, limit)
    return list_object([batch_object(batch) for batch in listed_batches], has_more=has_more)


@router.get(
    "/v1/batches/{batch_id}",
    operation_id="retrieve_batch",
    response_model=None,
    responses=answers(BatchObject, errors={404: "batch_not_found", 409: _DISABLED}),
)
async def get_batch(request: Request, batch_id: str, state: StartedState) -> dict[str, Any]:
    """One batch."""
    return batch_object(state.enabled_batches().store.find(batch_id, key_owner(request.scope)))


@router.post(
    "/v1/batches/{batch_id}/cancel",
    response_model=None,
    responses=answers(
        BatchObject, errors={404: "batch_not_found", 409: f"{_DISABLED}, batch_ended"}
    ),
)
async def cancel_batch(request: Request, batch_id: str, state: StartedState) -> dict[str, Any]:
    """Ends a batch before all of its requests are answered."""
    batches = state.enabled_batches()
    batch = batches.store.find(batch_id, key_owner(request.scope))
    await batches.store.begin_cancel(batch)
    batches.wake()
    return batch_object(batch)
