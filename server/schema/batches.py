"""The body of `/v1/batches`, and what files and batches look like, for the OpenAPI document."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from server.errors import InvalidField
from server.schema.base import Strict, unsupported
from server.schema.identifiers import Id, Metadata

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
"""The routes that a batch can use."""

MAX_FILE_NAME = 512
"""The most characters of a file's name."""

MIN_LIFETIME_S, MAX_LIFETIME_S = 3600, 30 * 24 * 3600
"""OpenAI's limits of the seconds after which a file expires."""

MAX_FILES_PAGE, MAX_BATCHES_PAGE, BATCHES_PAGE = 10_000, 100, 20
"""OpenAI's limits of the items of a page, and its default for batches."""

Purpose = Literal["batch", "batch_output"]
Status = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]


UPLOAD = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "additionalProperties": False,
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {
                            "type": "integer",
                            "minimum": MIN_LIFETIME_S,
                            "maximum": MAX_LIFETIME_S,
                        },
                    },
                }
            }
        },
    }
}
"""The body of an upload, for the OpenAPI document: it is not read by pydantic."""


def check_lifetime(seconds: int, param: str) -> int:
    """The seconds themselves. Raises `InvalidField` if OpenAI's limits do not allow them."""
    if not MIN_LIFETIME_S <= seconds <= MAX_LIFETIME_S:
        reason = f"{param}: must be from {MIN_LIFETIME_S} to {MAX_LIFETIME_S}, got {seconds}."
        raise InvalidField(param, reason)
    return seconds


def _endpoint(value: Any) -> Any:
    if isinstance(value, str) and value not in ENDPOINTS:
        raise unsupported(f"must be one of {', '.join(ENDPOINTS)}")
    return value


def _window(value: Any) -> Any:
    if isinstance(value, str) and value != "24h":
        raise unsupported("must be 24h, the only window that OpenAI has too")
    return value


class OutputExpiresAfter(Strict):
    """When the files that a batch writes expire."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_LIFETIME_S, le=MAX_LIFETIME_S)


class BatchRequest(Strict):
    """A batch: the requests of a file, answered in the background."""

    input_file_id: Id
    endpoint: Annotated[
        Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"],
        BeforeValidator(_endpoint),
    ]
    completion_window: Annotated[Literal["24h"], BeforeValidator(_window)]
    metadata: Metadata | None = None
    output_expires_after: OutputExpiresAfter | None = None


class FileObject(BaseModel):
    """A file."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int = Field(description="Unix time in seconds")
    expires_at: int = Field(description="Unix time in seconds")
    filename: str = Field(description="as the client calls it")
    purpose: Purpose
    status: Literal["processed"]
    status_details: None


class FileList(BaseModel):
    """A page of files."""

    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(BaseModel):
    """A file that was deleted."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class BatchFault(BaseModel):
    """Why a batch has failed."""

    code: str
    message: str
    line: int | None = Field(description="of the input, from 1")
    param: str | None


class BatchFaults(BaseModel):
    """The reasons why a batch has failed."""

    object: Literal["list"]
    data: list[BatchFault]


class RequestCounts(BaseModel):
    """The requests of a batch."""

    total: int = Field(description="0 until the file is validated")
    completed: int = Field(description="answered with status 200")
    failed: int


class InputTokensOfBatch(BaseModel):
    """Of the prompts' tokens."""

    cached_tokens: int


class OutputTokensOfBatch(BaseModel):
    """Of the generated tokens."""

    reasoning_tokens: int


class BatchUsage(BaseModel):
    """The tokens of all answers with status 200 so far."""

    input_tokens: int
    input_tokens_details: InputTokensOfBatch
    output_tokens: int
    output_tokens_details: OutputTokensOfBatch
    total_tokens: int


class BatchObject(BaseModel):
    """A batch. Its times are Unix times in seconds, null if the status was not reached."""

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: BatchFaults | None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None = Field(description="the answers with status 200, once it has ended")
    error_file_id: str | None = Field(description="the other lines, once it has ended")
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchList(BaseModel):
    """A page of batches."""

    object: Literal["list"]
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
