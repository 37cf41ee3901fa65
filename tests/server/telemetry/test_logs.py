"""The level and the format of log lines."""

import errno
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from server.telemetry.logs import ACCESS_LOGGER, OWN_LOGGERS, configure_logs, count_failures


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Restores the process's logging."""
    root = logging.getLogger()
    loggers = [root, *map(logging.getLogger, (*OWN_LOGGERS, ACCESS_LOGGER))]
    levels, handlers, config = [one.level for one in loggers], root.handlers, structlog.get_config()
    yield
    for one, level in zip(loggers, levels, strict=True):
        one.setLevel(level)
    root.handlers = handlers
    structlog.configure(**config)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Logs one word from each of four loggers."""
    structlog.get_logger("server.control.switching.switcher").info("ours")
    structlog.get_logger("server.control.switching.switcher").debug("detail")
    structlog.get_logger(ACCESS_LOGGER).info("access")
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("some.library").warning("worry")
    err = capsys.readouterr().err
    words = ("ours", "detail", "access", "chatter", "worry")
    return [word for word in words if word in err]


@pytest.mark.parametrize(
    ("level", "access", "expected"),
    [
        ("info", True, ["ours", "access", "worry"]),
        ("info", False, ["ours", "worry"]),
        ("debug", True, ["ours", "detail", "access", "worry"]),
        ("warning", True, ["worry"]),
        ("error", True, []),
    ],
)
def test_the_level_is_ours_and_libraries_log_warnings_only(
    capsys: pytest.CaptureFixture[str], level: str, access: bool, expected: list[str]
) -> None:
    configure_logs(level, json=False, access=access)
    assert lines(capsys) == expected


def test_every_line_is_json_if_configured(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", json=True, access=True)
    with structlog.contextvars.bound_contextvars(request_id="r-1"):
        structlog.get_logger("server.x").info("ours", number=3)
    try:
        raise ValueError("no")
    except ValueError as error:
        logging.getLogger("some.library").error("broken %s", "pipe", exc_info=error)
    ours, theirs = map(json.loads, capsys.readouterr().err.splitlines())
    assert (ours["event"], ours["number"], ours["request_id"]) == ("ours", 3, "r-1")
    assert (theirs["event"], theirs["level"], theirs["logger"]) == (
        "broken pipe",
        "error",
        "some.library",
    )
    assert theirs["exception"][0]["exc_type"] == "ValueError"


@pytest.mark.parametrize("json_lines", [False, True])
def test_a_logged_exception_shows_no_local_variables(
    capsys: pytest.CaptureFixture[str], json_lines: bool
) -> None:
    configure_logs("info", json=json_lines, access=True)

    def fail(authorization: str) -> None:
        raise ValueError("boom")

    try:
        fail("Bearer sk-" + "secret")
    except ValueError as error:
        structlog.get_logger("server.http.middleware").error("unhandled_exception", exc_info=error)
        logging.getLogger("uvicorn.error").error("Exception in ASGI application", exc_info=error)
    err = capsys.readouterr().err
    assert err.count("boom") >= 2
    assert "sk-secret" not in err


class FailingStream(io.StringIO):
    """A file that cannot be written while it has an `error`."""

    error: Exception | None = None

    def write(self, text: str) -> int:
        if self.error is not None:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError("I/O operation on closed file."),
    ],
)
def test_lines_that_cannot_be_written_are_counted_and_the_next_one_tells_of_them(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    stream = FailingStream()
    counted: list[int] = []
    monkeypatch.setattr("sys.stderr", stream)
    configure_logs("info", json=True, access=True)
    count_failures(lambda: counted.append(1))
    log = structlog.get_logger("server.x")
    stream.error = error
    for _ in range(3):
        log.info("lost")
    stream.error = None
    log.info("first")
    log.info("second")
    written = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert len(counted) == 3
    assert [line["event"] for line in written] == ["first", "log_writes_failed", "second"]
    assert (written[1]["lines"], written[1]["level"]) == (3, "error")


LONG = "an event that is longer than its column is wide"


@pytest.mark.parametrize(
    ("level", "event", "values"),
    [
        ("info", "event", {"word": "a", "text": "two words", "quoted": "it's", "empty": ""}),
        ("warning", LONG, {"number": 1.5, "nothing": None, "listed": ["a b"]}),
    ],
)
def test_a_line_of_text_without_colors_is_that_of_structlogs_columns(
    capsys: pytest.CaptureFixture[str], level: str, event: str, values: dict[str, Any]
) -> None:
    configure_logs("info", json=False, access=True)
    getattr(structlog.get_logger("server.x"), level)(event, **values)
    line = capsys.readouterr().err.rstrip("\n")
    time = line.partition(" ")[0]
    event_dict = {"timestamp": time, "level": level, "event": event, "logger": "server.x"}
    assert line == structlog.dev.ConsoleRenderer(colors=False)(None, "", event_dict | values)


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("json_lines", [False, True])
def test_an_exception_without_a_text_is_logged(
    capsys: pytest.CaptureFixture[str], json_lines: bool
) -> None:
    configure_logs("info", json=json_lines, access=True)
    try:
        raise _Unprintable
    except _Unprintable:
        structlog.get_logger("server.x").exception("failed")
    assert "_Unprintable" in capsys.readouterr().err


HOSTILE = {
    "a new line": "x\n2026-01-01 [info] admin_change who=key:ops",
    "a carriage return": "x\rforged",
    "an escape": "\x1b[2Jcleared",
    "a line separator": "x\u2028forged",
    "a next line": "x\x85forged",
    "NUL": "x\x00y",
    "right to left": "x\u202eforged",
    "a lone surrogate": "x\ud800y",
}


@pytest.mark.parametrize("json_lines", [False, True])
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_clients_text_neither_forges_a_line_nor_steers_the_terminal(
    capsys: pytest.CaptureFixture[str], text: str, json_lines: bool
) -> None:
    configure_logs("info", json=json_lines, access=True)
    log = structlog.get_logger("server.control.admin.audit")
    log.info("admin_change", reason=text, fields={"name": text})
    logging.getLogger("some.library").warning("cannot use %s", text)
    try:
        raise ValueError(text)
    except ValueError as error:
        log.error("unhandled_exception", exc_info=error)
    err = capsys.readouterr().err
    assert all(line.isprintable() for line in err.split("\n"))
    begins = [line for line in err.split("\n") if line and not line[0].isspace()]
    unforged = [line for line in begins if not line.startswith(("Traceback", "ValueError"))]
    assert len(unforged) == 3, err
    assert "forged" not in {line[:6] for line in begins}
