"""The two files of a batch, in OpenAI's batch format: requests in, answers out, a line each."""

import fcntl
import itertools
import json
import os
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import httpx

from engine_adapter.seam.text import short_repr
from server.http.body_limit import count_values
from server.http.headers import IGNORED_FIELDS, REQUEST_ID, UNENFORCED_KEYWORDS

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
"""The routes that a request of a batch can use."""

Entry = dict[str, Any]
"""A line of the output."""

_NOTICES = (IGNORED_FIELDS, UNENFORCED_KEYWORDS)
"""Headers of an answer that say what of its request had no effect."""

INVALID_LINE = "invalid_line"
"""The code of the error of a line that is not a valid request."""

MAX_CUSTOM_ID = 512
"""The most characters of a `custom_id`: those of a whole file are in memory."""

_ENTRY_START = '{"id": "batch_req_'


class BatchError(Exception):
    """A file that cannot be used; the message is one line."""


class RepeatedCustomId(BatchError):
    """Two lines of an input have the same `custom_id`.

    Attributes:
        line: the second one.
        reason: the message without the path.
    """

    def __init__(self, path: Path, first_line: int, line: int, custom_id: str) -> None:
        self.line = line
        self.reason = (
            f"the lines {first_line} and {line} have the same custom_id, {short_repr(custom_id)}; "
            "nothing was run"
        )
        super().__init__(f"{path}: {self.reason}")


@dataclass(frozen=True, slots=True)
class LineRules:
    """What a line may be.

    Attributes:
        urls: the routes that it may name.
        max_bytes, max_values: of a line; values are counted as in a body over HTTP.
    """

    urls: Collection[str] = URLS
    max_bytes: int = 2**62
    max_values: int = 2**62


ANY_LINE = LineRules()


@dataclass(frozen=True, slots=True)
class Request:
    """A valid line of the input.

    Attributes:
        line: its number, from 1.
        body: as JSON.
    """

    line: int
    custom_id: str
    url: str
    body: bytes


@dataclass(frozen=True, slots=True)
class BadLine:
    """An invalid line of the input, and the reason."""

    line: int
    custom_id: str | None
    message: str


@dataclass(slots=True)
class Tokens:
    """The usage of answers together."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def add(self, usage: dict[str, Any]) -> None:
        """Adds the usage of an answer; the routes have different names for its fields."""
        is_response = "input_tokens" in usage
        prompt, answer = ("input", "output") if is_response else ("prompt", "completion")
        self.input_tokens += usage.get(f"{prompt}_tokens", 0)
        self.output_tokens += usage.get(f"{answer}_tokens", 0)
        prompt_details = usage.get(f"{prompt}_tokens_details") or {}
        answer_details = usage.get(f"{answer}_tokens_details") or {}
        self.cached_tokens += prompt_details.get("cached_tokens") or 0
        self.reasoning_tokens += answer_details.get("reasoning_tokens") or 0


@dataclass(slots=True)
class OutputCounts:
    """The entries that an output file has already.

    Attributes:
        bad_lines: numbers of the invalid lines.
        failed: entries without a response of status 200.
        tokens: the usage of all answers together.
    """

    custom_ids: set[str] = field(default_factory=set)
    bad_lines: set[int] = field(default_factory=set)
    failed: int = 0
    tokens: Tokens = field(default_factory=Tokens)

    def __len__(self) -> int:
        return len(self.custom_ids) + len(self.bad_lines)

    def has(self, item: Request | BadLine) -> bool:
        """Whether the item has its entry."""
        if isinstance(item, BadLine):
            return item.line in self.bad_lines
        return item.custom_id in self.custom_ids

    def add(self, entry: Entry) -> None:
        """Counts an entry of the output."""
        error, response = entry["error"], entry["response"]
        if response is None and error["code"] == INVALID_LINE:
            self.bad_lines.add(error["line"])
        else:
            self.custom_ids.add(entry["custom_id"])
        if response is None or response["status_code"] != 200:
            self.failed += 1
        else:
            self.tokens.add(_usage(response))


def read_input(path: Path, rules: LineRules = ANY_LINE) -> Iterator[Request | BadLine]:
    """The lines of an input, without empty ones. Raises `BatchError` if it cannot be read."""
    if path.exists() and not path.is_file():
        raise BatchError(f"{path} is not a regular file")  # It is read more than once.
    try:
        with path.open("rb") as file:
            for number in itertools.count(1):
                line = file.readline(rules.max_bytes + 1)
                if not line:
                    return
                if len(line) > rules.max_bytes:
                    _skip_line(file, line)
                    reason = f"the line is longer than {rules.max_bytes} bytes"
                    yield BadLine(number, None, reason)
                elif line.strip():
                    yield _parse(number, line, rules)
    except OSError as error:
        raise BatchError(f"{path}: {error.strerror}") from None


def _skip_line(file: BinaryIO, part: bytes) -> None:
    """Reads to the end of the line whose beginning is `part`."""
    while part and not part.endswith(b"\n"):
        part = file.readline(2**16)


def count_input(path: Path, rules: LineRules = ANY_LINE, max_items: int | None = None) -> int:
    """The number of items; one more than `max_items` if there are more.

    Raises `RepeatedCustomId`, or `BatchError` if it cannot be read.
    """
    lines: dict[str, int] = {}
    count = 0
    for item in read_input(path, rules):
        count += 1
        if max_items is not None and count > max_items:
            break
        if item.custom_id is None:
            continue
        first_line = lines.setdefault(item.custom_id, item.line)
        if first_line != item.line:
            raise RepeatedCustomId(path, first_line, item.line, item.custom_id)
    return count


def _parse(number: int, line: bytes, rules: LineRules) -> Request | BadLine:
    if count_values(line) >= rules.max_values:
        return BadLine(number, None, f"the line has more than {rules.max_values} values")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadLine(number, None, f"not valid JSON: {error}")
    if not isinstance(fields, dict):
        return BadLine(number, None, "must be a JSON object")
    custom_id = fields.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        return BadLine(number, None, "custom_id must be a string that is not empty")
    if len(custom_id) > MAX_CUSTOM_ID:
        reason = f"custom_id has {len(custom_id)} characters; the maximum is {MAX_CUSTOM_ID}"
        return BadLine(number, None, reason)
    if reason := _refusal(fields, rules.urls):
        return BadLine(number, custom_id, reason)
    try:
        body = json.dumps(fields["body"]).encode()
    except RecursionError as error:
        return BadLine(number, custom_id, f"body is nested too deeply: {error}")
    return Request(number, custom_id, fields["url"], body)


def _refusal(fields: dict[str, Any], urls: Collection[str]) -> str:
    """Why a line is not a valid request; empty if it is."""
    body = fields.get("body")
    if fields.get("method") != "POST":
        return "method must be POST"
    if fields.get("url") not in urls:
        must = "must be one of" if len(urls) > 1 else "must be"
        return f"url {must} {', '.join(urls)}"
    if not isinstance(body, dict):
        return "body must be a JSON object"
    for name in ("stream", "background"):
        if body.get(name):
            return f"body.{name} is not supported in a batch; leave it out"
    return ""


def response_entry(request: Request, response: httpx.Response) -> Entry:
    """The entry of a request that was sent, with its response of any status."""
    answer = {
        "status_code": response.status_code,
        "request_id": response.headers[REQUEST_ID],
        "body": response.json(),
    }
    # What had no effect is named, as over HTTP. OpenAI's entries have no headers.
    notices = {name: response.headers[name] for name in _NOTICES if name in response.headers}
    return _entry(request.custom_id, answer | ({"headers": notices} if notices else {}), None)


def bad_line_entry(bad: BadLine) -> Entry:
    """The entry of a line that is not a valid request."""
    message = f"line {bad.line}: {bad.message}"
    error = {"code": INVALID_LINE, "message": message, "line": bad.line}
    return _entry(bad.custom_id, None, error)


def _usage(response: dict[str, Any]) -> dict[str, Any]:
    """The usage of an answer; an answer that has not ended has none."""
    return response["body"].get("usage") or {}


def generated_tokens(entry: Entry) -> int:
    """The tokens that an entry's answer has; 0 for a refusal or a failure."""
    response = entry["response"]
    if response is None or response["status_code"] != 200:
        return 0
    figures = _usage(response)
    # The routes have different names for it.
    count: int = figures.get("completion_tokens", figures.get("output_tokens", 0))
    return count


def unanswered_entry(request: Request, code: str, message: str) -> Entry:
    """The entry of a request that will not be sent."""
    return _entry(request.custom_id, None, {"code": code, "message": message})


def _entry(custom_id: str | None, response: Any, error: Any) -> Entry:
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
        self.close()

    def close(self) -> None:
        """Ends the writing."""
        self._file.close()

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return self._file.seek(0, os.SEEK_END)

    def write(self, entry: Entry) -> int:
        """Appends an entry, and returns its bytes. Raises `BatchError`."""
        line = json.dumps(entry).encode() + b"\n"
        try:
            is_complete = self._file.write(line) == len(line)
        except OSError as error:
            raise BatchError(f"{self._path}: {error.strerror}") from None
        if not is_complete:
            raise BatchError(f"{self._path}: the disk is full")
        self.done.add(entry)
        return len(line)

    def _read(self) -> OutputCounts:
        counts = OutputCounts()
        end = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    self._cut(number, line, end)
                    break
                try:
                    counts.add(json.loads(line))
                except (ValueError, KeyError, TypeError):
                    raise self._not_a_batch(number) from None
                end += len(line)
        return counts

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
