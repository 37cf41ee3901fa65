"""The errors of a request, and the only mapping from exceptions to HTTP error bodies.

ApiError                    a status and the four fields of OpenAI's error body
├── InvalidField            400: a field of the request; `param` is its dotted path
├── NotFound                404
├── TooManyRequests, ...     429 and others: a limit ends a request; see `limit_errors`
├── Unavailable             503, with Retry-After where a retry can help
│   ├── Stopping            the server is stopping
│   ├── DrainAborted        a drain ended the request
│   └── AuditUnavailable    an admin change whose record cannot be written
└── ClientDisconnected      499: the client is gone; for the log and the metrics

Every error of every route has the body `{"error": {"message", "type", "param", "code"}}`,
`code` a string or null. A message never holds more than `server.text.MAX_ECHO` characters of
the input.
"""

import asyncio
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from engine_adapter.seam.errors import (
    EngineConfigError,
    EngineDead,
    EngineError,
    EngineFull,
    EngineNotReady,
    InvalidRequest,
    LoraRefused,
    ProposerRefused,
)
from engine_adapter.seam.text import truncate
from server.body_faults import deepest_fault, unreadable
from server.http.exchange import exchange_of
from server.http.headers import RETRY_AFTER
from server.http.unknown_paths import allowed_methods, is_missing, unknown_path, wrong_method
from server.text import MAX_MESSAGE, replace_surrogates

RETRY_AFTER_LOADING_S = 5
"""Retry-After while the engine loads for the first time: the remaining time is unknown."""

MAX_CHECKPOINT_REASON = 500
"""The most characters of a library's reason why a checkpoint cannot be used."""

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
        self.message = replace_surrogates(truncate(message, MAX_MESSAGE))
        self.type = type
        self.param = param if param is None else truncate(replace_surrogates(param))
        self.code = code
        self.headers: Mapping[str, str] = headers or {}


class InvalidField(ApiError):
    """400: a field's value cannot be accepted; `param` is the field's dotted path."""

    def __init__(self, param: str | None, message: str, code: str | None = None) -> None:
        super().__init__(400, message, param=param, code=code)


class NotFound(ApiError):
    """404: the request names something that does not exist."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(404, message, param=param, code=code)


class Overloaded(ApiError):
    """429: the engine has no room now; `reason` says why, as a clause."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            429,
            f"The server is overloaded: {reason}. Try again later.",
            type="rate_limit_error",
            code="server_overloaded",
            headers={RETRY_AFTER: str(RETRY_AFTER_LOADING_S)},
        )


class Unavailable(ApiError):
    """503: `retry_after_s` is the wait before a retry can help; `None`: a retry cannot help."""

    def __init__(
        self, message: str, code: str, retry_after_s: float | None = RETRY_AFTER_LOADING_S
    ) -> None:
        headers = {}
        if retry_after_s is not None:
            headers[RETRY_AFTER] = str(max(1, math.ceil(retry_after_s)))
        super().__init__(503, message, type="server_error", code=code, headers=headers)


class Stopping(Unavailable):
    """503: the server is stopping; another server, or this one after a restart, may answer."""

    def __init__(self, message: str = "The server is stopping.") -> None:
        super().__init__(message, "stopping")


class DrainAborted(Unavailable):
    """503: a drain ended the request, because it ran longer than the drain waits."""

    def __init__(self) -> None:
        message = "A switch of the spec method ended this request, because it ran too long."
        super().__init__(message, "drain_aborted", 1)


class AuditUnavailable(Unavailable):
    """503: the record of an admin change cannot be written, and the server requires it."""

    def __init__(self, reason: str) -> None:
        message = f"The audit log cannot be written ({reason}), so nothing was changed."
        super().__init__(message, "audit_unavailable", None)


class ClientDisconnected(ApiError):
    """499, as in nginx: the client closed the connection before its response was ready."""

    def __init__(self) -> None:
        super().__init__(499, "The client closed the connection.", code="client_disconnected")


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


MESSAGES_PATH = "/v1/messages"
"""The paths from here on have errors in Anthropic's form."""

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_error(error: ApiError, request_id: str | None = None) -> dict[str, Any]:
    """The JSON body of an error in Anthropic's form, with the other fields of this server's."""
    default = "api_error" if error.status >= 500 else "invalid_request_error"
    kind = _ANTHROPIC_TYPES.get(error.status, default)
    detail = {**error_body(error)["error"], "type": kind}
    return {"type": "error", "error": detail, "request_id": request_id}


class ErrorResponse(JSONResponse):
    """The whole response of an error, in the form of its path."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error_body(error), error.status, headers=dict(error.headers))
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it."""
        if scope["type"] == "http" and scope["path"].startswith(MESSAGES_PATH):
            self.body = self.render(anthropic_error(self._error, exchange_of(scope).request_id))
            self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def error_response(error: ApiError) -> ErrorResponse:
    """The whole response of an error; also an ASGI application, for pure middleware."""
    return ErrorResponse(error)


async def send_error(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers a request with an error outside of the routes; its trace gets the error's code."""
    exchange_of(scope).error = error.code or error.type
    await error_response(error)(scope, receive, send)


def to_api_error(error: BaseException) -> ApiError:
    """The error that a client gets for an exception. An unexpected one reveals no details."""
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
        case EngineConfigError():
            return InvalidField(
                error.field, truncate(error.message, MAX_CHECKPOINT_REASON), error.code
            )
        case EngineNotReady():
            return Unavailable("The engine is still loading; try again soon.", "engine_not_ready")
        case EngineDead():
            return Unavailable(str(error), "engine_dead", error.retry_after_s)
        case EngineFull():
            return Overloaded(str(error))
        case RequestValidationError():
            return _invalid(error, None)
        case HTTPException():
            return _http_error(error)
        case _:
            message = "Internal server error; the server's log has the details."
            return ApiError(500, message, type="server_error", code="internal_error")


def cancellation_error(cancelled: asyncio.CancelledError) -> ApiError:
    """Why the server cancelled a request's task: `task.cancel(msg=error)`, or the server stops."""
    reason = cancelled.args[0] if cancelled.args else None
    return reason if isinstance(reason, ApiError) else Stopping()


def install_error_handlers(app: FastAPI) -> None:
    """Turns every expected exception into a response in OpenAI's format.

    Unexpected exceptions are left to `server.http.middleware.ErrorBoundary`, which also covers
    the other middleware.
    """
    for kind in (ApiError, EngineError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _handle)


async def _handle(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, RequestValidationError):
        api_error = _invalid(error, _body_type(request))
    else:
        api_error = to_api_error(error)
    if isinstance(error, HTTPException):
        _explain(request, api_error)
    if api_error.status == 500:
        log.error("request_failed", exc_info=error)
    exchange_of(request.scope).error = api_error.code or api_error.type
    # A frame of FastAPI's that raised it has it in a variable. Such a cycle would hold the body
    # until the garbage collector runs, which the server starts rarely.
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error_response(api_error)


def _explain(request: Request, error: ApiError) -> None:
    """Says of an unknown path, or of a wrong method, what is right."""
    path = request.scope["path"]
    if error.status == 405 and is_missing(path):
        # The path looks like that of one stored response, whose routes have other methods.
        error.status, error.code = 404, "not_found"
    if error.status == 404:
        error.message = unknown_path(path, request.app.routes)
    elif error.status == 405:
        allowed = allowed_methods(request)
        error.message = wrong_method(request, allowed)
        error.headers = {"Allow": ", ".join(allowed)}


def _http_error(error: HTTPException) -> ApiError:
    """Starlette's own errors: unknown path, wrong method, and a body that a limit refuses."""
    codes = {
        404: "not_found",
        405: "method_not_allowed",
        408: "slow_client",
        413: "request_too_large",
        499: "client_disconnected",
        503: "too_many_bodies",
    }
    message = str(error.detail) or HTTPStatus(error.status_code).phrase
    code = codes.get(error.status_code)
    if error.status_code == 400:
        code, message = "invalid_json", unreadable(error.__cause__)
    kind = "server_error" if error.status_code >= 500 else "invalid_request_error"
    return ApiError(error.status_code, message, type=kind, code=code, headers=error.headers)


def _body_type(request: Request) -> Any:
    """The type of the body of a request's route, `None` if it has none."""
    field = getattr(request.scope.get("route"), "body_field", None)
    return None if field is None else field.field_info.annotation


def _invalid(error: RequestValidationError, body_type: Any) -> ApiError:
    fault = deepest_fault(error, body_type)
    return InvalidField(fault.param, fault.message, fault.code)
