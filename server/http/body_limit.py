"""What a request's body may be, checked while it arrives: bytes, values, time. Pure ASGI.

The parsers of JSON and of the fields hold the interpreter until they are done, so a body that
would take them long must be refused before. Its commas and colons say how much there is to parse,
and counting them takes next to nothing.
"""

import asyncio
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError, send_error
from server.http.headers import RETRY_AFTER
from server.settings.http_settings import HttpSettings

PROGRESS_BYTES = 16 * 2**10
"""What must arrive of a body within `--body-timeout-s`."""

MAX_LENGTH_DIGITS = 20
"""The most digits of a `Content-Length`: those of 2^64. The parser takes any number of zeros."""

FIELD_VALUES = 3
"""How many values a field of an object counts as: its name has to be made and compared."""

UPLOAD = ("POST", "/v1/files")
"""The requests whose bodies go to the disk as they arrive, and may be larger."""

FORM_BYTES = 64 * 2**10
"""What the form around a file may have: its boundaries, headers and fields."""


def count_values(data: bytes) -> int:
    """The values of JSON, or of a part of it, counted by what is between them."""
    return data.count(b",") + FIELD_VALUES * data.count(b":")


class Pace:
    """Whether a body arrives fast enough; times are the event loop's.

    Attributes:
        deadline: when the next `PROGRESS_BYTES`, or the end, must have arrived.
    """

    def __init__(self, timeout_s: float, now_s: float) -> None:
        self._timeout_s = timeout_s
        self._missing = PROGRESS_BYTES
        self.deadline = now_s + timeout_s

    def add(self, num_bytes: int, now_s: float) -> None:
        """Notes that bytes have arrived."""
        self._missing -= num_bytes
        if self._missing <= 0:
            self._missing = PROGRESS_BYTES
            self.deadline = now_s + self._timeout_s


class BodyLimit:
    """Refuses a body that is too large, has too many values, or comes too slowly.

    A refusal is a 413, with or without a content length, or a 408. If the bodies that are still
    arriving are too large together, the largest of them gets a 503, so that a few slow ones do not
    keep out small ones. The connection then drops the rest of the body.

    Args:
        reading: gets the tasks of the requests whose body has not arrived in full.
        max_file_bytes: of a file that is uploaded; `None` if none can be.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: HttpSettings,
        reading: "set[asyncio.Task[None]]",
        max_file_bytes: int | None = None,
    ) -> None:
        self._max_file_bytes = max_file_bytes
        self._app = app
        self.settings = settings
        self.reading = reading
        self.unfinished_bytes = 0
        """The bytes of all bodies that have not arrived in full."""
        self.unfinished: set[_Body] = set()
        """These bodies."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        bounds = self._bounds(scope)
        content_length = Headers(scope=scope).get("content-length", "")
        if (refusal := _refusal(content_length, bounds.max_bytes)) is not None:
            await send_error(refusal, scope, receive, send)
            return
        body = _Body(self, bounds, receive)
        try:
            await self._app(scope, body.receive, send)
        finally:
            body.release()

    def _bounds(self, scope: Scope) -> "_Bounds":
        settings, max_file_bytes = self.settings, self._max_file_bytes
        if max_file_bytes is not None and (scope["method"], scope["path"]) == UPLOAD:
            return _Bounds(max_file_bytes + FORM_BYTES, None, is_held=False)
        return _Bounds(settings.max_body_bytes, settings.max_body_values, is_held=True)

    def make_room(self) -> None:
        """Ends the largest body if all that have not arrived in full are too large together."""
        if self.unfinished_bytes > self.settings.max_unfinished_body_bytes:
            max(self.unfinished, key=lambda body: body.num_bytes).end()


@dataclass(frozen=True, slots=True)
class _Bounds:
    """What a body may be.

    Attributes:
        max_values: `None` if nothing parses it as a whole.
        is_held: it is in memory until it has arrived.
    """

    max_bytes: int
    max_values: int | None
    is_held: bool


def _refusal(content_length: str, max_bytes: int) -> ApiError | None:
    if len(content_length) > MAX_LENGTH_DIGITS:
        message = f"Content-Length has more than {MAX_LENGTH_DIGITS} digits."
        return ApiError(400, message, code="invalid_http")
    if content_length.isdecimal() and int(content_length) > max_bytes:
        return ApiError(413, too_large(max_bytes), code="request_too_large")
    return None


class _Body:
    """A body on its way."""

    def __init__(self, limit: BodyLimit, bounds: _Bounds, receive: Receive) -> None:
        self._limit = limit
        self._bounds = bounds
        self._receive = receive
        self.num_bytes = 0
        self._num_values = 0
        self._has_arrived = self._was_ended = False
        self._waiting: asyncio.Timeout | None = None
        if bounds.is_held:
            limit.unfinished.add(self)
        self._task = asyncio.current_task()
        if self._task is not None:
            limit.reading.add(self._task)
        self._loop = asyncio.get_running_loop()
        self._pace = Pace(limit.settings.body_timeout_s, self._loop.time())

    async def receive(self) -> Message:
        """The next part; later, the client's disconnect.

        Raises `HTTPException`: FastAPI turns any other exception that occurs while it reads into
        a 400.
        """
        if self._was_ended:
            raise _too_many()
        if self._has_arrived:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._pace.deadline) as self._waiting:
                part = await self._receive()
        except TimeoutError:
            if not self._was_ended:
                timeout_s = self._limit.settings.body_timeout_s
                amount = f"{PROGRESS_BYTES >> 10} KiB of the body"
                message = f"Less than {amount} arrived within {timeout_s:g} s."
                raise HTTPException(408, message, {"Connection": "close"}) from None
        finally:
            self._waiting = None
        if self._was_ended:
            raise _too_many()
        if part["type"] == "http.disconnect":
            raise HTTPException(499, "The client closed the connection.")
        self._add(part.get("body", b""))
        if not part.get("more_body", False):
            self.release()
        self._limit.make_room()
        if self._was_ended:
            raise _too_many()
        return part

    def release(self) -> None:
        """The body has arrived, or is given up: it does not count any more."""
        if not self._has_arrived:
            self._has_arrived = True
            if self._bounds.is_held:
                self._limit.unfinished_bytes -= self.num_bytes
            self._limit.unfinished.discard(self)
            if self._task is not None:
                self._limit.reading.discard(self._task)

    def end(self) -> None:
        """Gives the body up, because of all that arrives: its request gets a 503."""
        self._was_ended = True
        self.release()
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(self._loop.time())

    def _add(self, data: bytes) -> None:
        bounds = self._bounds
        self._pace.add(len(data), self._loop.time())
        self.num_bytes += len(data)
        if bounds.is_held:
            self._limit.unfinished_bytes += len(data)
        if self.num_bytes > bounds.max_bytes:
            raise HTTPException(413, too_large(bounds.max_bytes))
        if bounds.max_values is None:
            return
        self._num_values += count_values(data)
        if self._num_values >= bounds.max_values:
            message = (
                f"The body has more than {bounds.max_values} values; a field of an object "
                f"counts as {FIELD_VALUES}."
            )
            raise HTTPException(413, message)


def _too_many() -> HTTPException:
    message = "Too many large bodies arrive at once; try again soon."
    return HTTPException(503, message, {RETRY_AFTER: "1"})


def too_large(max_bytes: int) -> str:
    """The message of a body above the limit of bytes."""
    return f"The body is larger than {max_bytes} bytes."
