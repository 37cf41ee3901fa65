"""The two files of a batch, in OpenAI's batch format: requests in, answers out, a line each."""

import fcntl
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from engine_adapter.seam.text import short_repr

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
"""The routes that a request of a batch can use."""

_ENTRY_START = '{"id": "batch_req_'


class BatchError(Exception):
    """A file that cannot be used; the message is one line."""


@dataclass(frozen=True, slots=True)
class Request:
    """A valid line of the input.

    Attributes:
        line: its number, from 1.
    """

    line: int
    custom_id: str
    url: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BadLine:
    """An invalid line of the input, and the reason."""

    line: int
    custom_id: str | None
    message: str


@dataclass(slots=True)
class Done:
    """The entries that an output file has already.

    Attributes:
        bad_lines: numbers of the invalid lines.
        failed: entries without a response of status 200.
    """

    custom_ids: set[str] = field(default_factory=set)
    bad_lines: set[int] = field(default_factory=set)
    failed: int = 0

    def has(self, item: Request | BadLine) -> bool:
        """Whether the item has its entry."""
        if isinstance(item, BadLine):
            return item.line in self.bad_lines
        return item.custom_id in self.custom_ids

    def add(self, entry: dict[str, Any]) -> None:
        """Counts an entry of the output."""
        error, response = entry["error"], entry["response"]
        if response is None:
            self.bad_lines.add(error["line"])
        else:
            self.custom_ids.add(entry["custom_id"])
        self.failed += response is None or response["status_code"] != 200


def read_input(path: Path) -> Iterator[Request | BadLine]:
    """The lines of an input, without empty ones. Raises `BatchError` if it cannot be read."""
    if path.exists() and not path.is_file():
        raise BatchError(f"{path} is not a regular file")  # It is read more than once.
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _parse(number, line)
    except OSError as error:
        raise BatchError(f"{path}: {error.strerror}") from None


def count_input(path: Path) -> int:
    """The number of items. Raises `BatchError` if two have the same `custom_id`."""
    lines: dict[str, int] = {}
    count = 0
    for item in read_input(path):
        count += 1
        if item.custom_id is None:
            continue
        first_line = lines.setdefault(item.custom_id, item.line)
        if first_line != item.line:
            raise BatchError(
                f"{path}: the lines {first_line} and {item.line} have the same custom_id, "
                f"{short_repr(item.custom_id)}; nothing was run"
            )
    return count


def _parse(number: int, line: bytes) -> Request | BadLine:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadLine(number, None, f"not valid JSON: {error}")
    if not isinstance(fields, dict):
        return BadLine(number, None, "must be a JSON object")
    custom_id = fields.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        return BadLine(number, None, "custom_id must be a string that is not empty")
    if reason := _refusal(fields):
        return BadLine(number, custom_id, reason)
    return Request(number, custom_id, fields["url"], fields["body"])


def _refusal(fields: dict[str, Any]) -> str | None:
    body = fields.get("body")
    if fields.get("method") != "POST":
        return "method must be POST"
    if fields.get("url") not in URLS:
        return f"url must be one of {', '.join(URLS)}"
    if not isinstance(body, dict):
        return "body must be a JSON object"
    for name in ("stream", "background"):
        if body.get(name):
            return f"body.{name} is not supported in a batch; leave it out"
    return None


def response_entry(request: Request, status: int, request_id: str, body: Any) -> dict[str, Any]:
    """The entry of a request that was sent, with its response of any status."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return _entry(request.custom_id, response, None)


def generated_tokens(entry: dict[str, Any]) -> int:
    """The tokens that an entry's answer has; 0 for a refusal or a failure."""
    response = entry["response"]
    if response is None or response["status_code"] != 200:
        return 0
    figures = response["body"]["usage"]
    # The routes have different names for it.
    count: int = figures.get("completion_tokens", figures.get("output_tokens", 0))
    return count


def bad_line_entry(bad: BadLine) -> dict[str, Any]:
    """The entry of a line that is not a valid request."""
    message = f"line {bad.line}: {bad.message}"
    error = {"code": "invalid_line", "message": message, "line": bad.line}
    return _entry(bad.custom_id, None, error)


def _entry(custom_id: str | None, response: Any, error: Any) -> dict[str, Any]:
    # `id` comes first: `_cut` recognizes an entry by its beginning.
    return {
        "id": f"batch_req_{uuid.uuid4().hex}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }


class Output:
    """An output file that only grows, by whole lines. A context manager.

    Opening it removes a last line that an interrupted run did not finish.

    Raises:
        BatchError: it cannot be written, is not the output of a batch, or another batch writes it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if path.exists() and not path.is_file():
            raise BatchError(f"{path} is not a regular file")
        try:
            # Without a buffer an entry is written in one piece, or not at all.
            self._file: BinaryIO = path.open("a+b", buffering=0)
        except OSError as error:
            raise BatchError(f"{path}: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.done = self._read()
        except BlockingIOError:
            self._file.close()
            raise BatchError(f"{path}: another batch writes to it") from None
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, entry: dict[str, Any]) -> None:
        """Appends an entry. Raises `BatchError`."""
        line = json.dumps(entry).encode() + b"\n"
        try:
            is_complete = self._file.write(line) == len(line)
        except OSError as error:
            raise BatchError(f"{self._path}: {error.strerror}") from None
        if not is_complete:
            raise BatchError(f"{self._path}: the disk is full")
        self.done.add(entry)

    def _read(self) -> Done:
        done = Done()
        end = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    self._cut(number, line, end)
                    break
                try:
                    done.add(json.loads(line))
                except (ValueError, KeyError, TypeError):
                    raise self._not_a_batch(number) from None
                end += len(line)
        return done

    def _cut(self, number: int, line: bytes, end: int) -> None:
        """Removes the last line, which an interrupted run did not finish."""
        text = line.decode("utf-8", "replace")
        if not (text.startswith(_ENTRY_START) or _ENTRY_START.startswith(text)):
            raise self._not_a_batch(number)
        self._file.truncate(end)

    def _not_a_batch(self, number: int) -> BatchError:
        return BatchError(
            f"{self._path}: line {number} is not the output of a batch; give another file"
        )
