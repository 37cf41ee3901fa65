"""`/v1/files`: the files of batches."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from server.batches.content import Bytes, FileContent
from server.batches.shown import file_object, list_object, page
from server.batches.upload import receive_file
from server.contract.answers import BINARY, KEY_LIMIT_ERRORS, answers
from server.http.auth import key_owner
from server.schema.batches import (
    MAX_FILES_PAGE,
    UPLOAD,
    DeletedFile,
    FileList,
    FileObject,
    Purpose,
)
from server.state import StartedState

router = APIRouter(tags=["Batches"])

_DISABLED = "files_disabled"


@router.post(
    "/v1/files",
    response_model=None,
    openapi_extra=UPLOAD,
    responses=answers(
        FileObject,
        id_for=dict.fromkeys(("retrieve_file", "delete_file", "retrieve_file_content"), "file_id"),
        errors={
            400: "invalid_form, missing_required_parameter, file_quota_exceeded",
            408: "slow_client",
            409: _DISABLED,
            413: "request_too_large",
            503: "files_unavailable",
            **KEY_LIMIT_ERRORS,
        },
    ),
)
async def create_file(request: Request, state: StartedState) -> dict[str, Any]:
    """Stores a file of requests."""
    files, owner = state.enabled_batches().files, key_owner(request.scope)
    content_type = request.headers.get("content-type", "")
    return file_object(await receive_file(files, owner, content_type, request.stream()))


@router.get(
    "/v1/files",
    operation_id="list_files",
    response_model=None,
    responses=answers(FileList, errors={400: "", 409: _DISABLED}),
)
async def get_files(
    request: Request,
    state: StartedState,
    purpose: Purpose | None = None,
    after_id: Annotated[str | None, Query(alias="after")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_FILES_PAGE)] = MAX_FILES_PAGE,
    order: Literal["asc", "desc"] = "desc",
) -> dict[str, Any]:
    """The files of the key."""
    files = state.enabled_batches().files.of_owner(key_owner(request.scope), purpose)
    listed_files, has_more = page(files, after_id, limit, newest_first=order == "desc")
    return list_object([file_object(file) for file in listed_files], has_more=has_more)


@router.get(
    "/v1/files/{file_id}",
    operation_id="retrieve_file",
    response_model=None,
    responses=answers(FileObject, errors={404: "file_not_found", 409: _DISABLED}),
)
async def get_file(request: Request, file_id: str, state: StartedState) -> dict[str, Any]:
    """One file."""
    return file_object(state.enabled_batches().files.find(file_id, key_owner(request.scope)))


@router.delete(
    "/v1/files/{file_id}",
    response_model=None,
    responses=answers(
        DeletedFile, errors={404: "file_not_found", 409: f"{_DISABLED}, file_in_use"}
    ),
)
async def delete_file(request: Request, file_id: str, state: StartedState) -> dict[str, Any]:
    """Deletes a file that no unfinished batch needs."""
    files = state.enabled_batches().files
    await files.delete(files.find(file_id, key_owner(request.scope)))
    return {"id": file_id, "object": "file", "deleted": True}


@router.get(
    "/v1/files/{file_id}/content",
    operation_id="retrieve_file_content",
    response_model=None,
    response_class=Bytes,
    responses=answers(
        binary=BINARY,
        errors={
            404: "file_not_found",
            409: _DISABLED,
            429: "concurrency_limit_exceeded",
            503: "files_unavailable",
        },
    ),
)
async def get_file_content(request: Request, file_id: str, state: StartedState) -> Response:
    """The content of a file."""
    files = state.enabled_batches().files
    return FileContent(files, files.find(file_id, key_owner(request.scope)))
