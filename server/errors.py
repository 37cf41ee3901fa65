"""What can go wrong in a request, and the one mapping from it to an HTTP error body.

ApiError                    a status and the four fields of OpenAI's error body
├── InvalidField            400: a field of the request; `param` is its dotted path
├── NotFound                404
├── Unavailable             503, with Retry-After where asking again can help
│   └── Stopping            the server stops
└── ClientDisconnected      499: nobody is left to read it; for the log and the metrics

Every error of every route has the body `{"error": {"message", "type", "param", "code"}}`,
`code` a string or null. A message never holds more than `MAX_ECHO` characters of the input.
"""

import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from engine_adapter.errors import (
    EngineDead,
    EngineError,
    EngineNotReady,
    InvalidRequest,
    LoraRefused,
    ProposerRefused,
)

MAX_ECHO = 200
"""The most characters of a request's own text that an error message repeats."""

RETRY_AFTER_LOADING_S = 5
"""Retry-After while the engine loads for the first time: nothing is known that tells how long."""

log = structlog.get_logger(__name__)


class ApiError(Exception):
    """An error with its HTTP status and OpenAI's four fields."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _encodable(message)
        self.type = type
        self.param = param if param is None else _cut(_encodable(param))
        self.code = code
        self.headers: Mapping[str, str] = headers or {}


class InvalidField(ApiError):
    """400: a field's value cannot be accepted; `param` is the field's dotted path."""

    def __init__(self, param: str | None, message: str, code: str | None = None) -> None:
        super().__init__(400, message, param=param, code=code)


class NotFound(ApiError):
    """404: what the request names does not exist."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(404, message, param=param, code=code)


class Unavailable(ApiError):
    """503: not now; `retry_after_s` says when it is worth asking again, `None` that it is not."""

    def __init__(
        self, message: str, code: str, retry_after_s: float | None = RETRY_AFTER_LOADING_S
    ) -> None:
        headers = {}
        if retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
        super().__init__(503, message, type="server_error", code=code, headers=headers)


class Stopping(Unavailable):
    """503: the server stops; another one, or a later one, may answer."""

    def __init__(self, message: str = "The server is stopping.") -> None:
        super().__init__(message, "stopping")


class ClientDisconnected(ApiError):
    """499, nginx's status for it: the client went before its answer was ready."""

    def __init__(self) -> None:
        super().__init__(499, "The client closed the connection.", code="client_disconnected")


def clip(value: object) -> str:
    """`value` as a message may repeat it: its repr, cut to `MAX_ECHO` characters."""
    return _cut(repr(value))


def _encodable(text: str) -> str:
    """Half a surrogate pair, which JSON can carry and UTF-8 cannot, becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def _cut(text: str) -> str:
    return text if len(text) <= MAX_ECHO else text[: MAX_ECHO - 1] + "…"


def error_body(error: ApiError) -> dict[str, Any]:
    """The JSON body of an error, in a response or in a stream's data event."""
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


def error_response(error: ApiError) -> JSONResponse:
    """The whole response of an error; also an ASGI application, for pure middleware."""
    return JSONResponse(error_body(error), error.status, headers=dict(error.headers))


def to_api_error(error: BaseException) -> ApiError:
    """What any exception means to a client. An unexpected one says nothing of itself."""
    match error:
        case ApiError():
            return error
        case InvalidRequest():
            return InvalidField(error.param, str(error), error.code)
        case ProposerRefused():
            status = 404 if error.code == "proposer_not_found" else 409
            return ApiError(status, str(error), param="name", code=error.code)
        case LoraRefused():
            status = 404 if error.code == "adapter_not_found" else 409
            return ApiError(status, str(error), param="lora_name", code=error.code)
        case EngineNotReady():
            return Unavailable("The engine is still loading; try again soon.", "engine_not_ready")
        case EngineDead():
            return Unavailable(str(error), "engine_dead", error.retry_after_s)
        case RequestValidationError():
            return _validation_error(error)
        case HTTPException():
            return _http_error(error)
        case _:
            message = "The server had an internal error; its log has the details."
            return ApiError(500, message, type="server_error", code="internal_error")


def install_error_handlers(app: FastAPI) -> None:
    """Makes every expected exception a response in OpenAI's shape.

    Unexpected ones are left to `server.http.middleware.ErrorBoundary`, which also covers the
    other middleware.
    """
    for kind in (ApiError, EngineError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _handle)


async def _handle(request: Request, error: Exception) -> JSONResponse:
    mapped = to_api_error(error)
    if mapped.status == 500:
        log.error("request_failed", exc_info=error)
    return error_response(mapped)


def _http_error(error: HTTPException) -> ApiError:
    """Starlette's own refusals: no such route, no such method, and the body's size."""
    codes = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}
    message = str(error.detail) or HTTPStatus(error.status_code).phrase
    if error.status_code in (404, 405):
        phrases = {404: "No such path.", 405: "This path does not have that method."}
        message = phrases[error.status_code]
    code = codes.get(error.status_code)
    if error.status_code == 400:
        # FastAPI raises it for a body that cannot be read as JSON at all.
        code, message = "invalid_json", "The body is not valid JSON."
    return ApiError(error.status_code, message, code=code, headers=error.headers)


def _validation_error(error: RequestValidationError) -> ApiError:
    """The error that lies deepest in the body: of a union's branches, the one that was meant."""
    found = [(_path(e["loc"][1:], error.body), e) for e in error.errors()]
    path, detail = max(found, key=lambda pair: len(pair[0]))
    param = _cut(".".join(map(str, path)))
    kind = detail["type"]
    if kind == "json_invalid":
        at = detail["loc"][-1]
        reason = detail["ctx"]["error"]
        message = f"The body is not valid JSON: {reason}, at character {at}."
        return ApiError(400, message, code="invalid_json")
    if not path and isinstance(error.body, dict):
        return ApiError(400, f"The body: {detail['msg']}")
    if not path:
        message = "The body must be a JSON object, sent with `Content-Type: application/json`."
        return ApiError(400, message)
    if kind == "missing":
        return InvalidField(param, f"{param} is required.", "missing_required_parameter")
    if kind == "extra_forbidden":
        return InvalidField(param, f"{param} is not a known field.", "unknown_parameter")
    context = detail.get("ctx", {})
    reason = detail["msg"].removeprefix("Value error, ")
    if kind == "union_tag_invalid":  # pydantic's message repeats the whole tag
        reason = f"{context['discriminator']} must be one of {context['expected_tags']}"
    return InvalidField(param, f"{param}: {reason}", context.get("code"))


def _path(loc: Sequence[str | int], body: Any) -> list[str | int]:
    """The part of pydantic's location that a client knows: union tags are left out."""
    path: list[str | int] = []
    for i, step in enumerate(loc):
        last = i == len(loc) - 1
        if isinstance(body, dict) and (step in body or last):
            body = body.get(step)
        elif isinstance(body, list) and isinstance(step, int) and step < len(body):
            body = body[step]
        else:
            continue
        path.append(step)
    return path
