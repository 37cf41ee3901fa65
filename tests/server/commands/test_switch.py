"""`specgate switch` with a server, and with addresses that are not Specgate's."""

import json
import socket
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from server.cli import main
from server.commands.switch import ARGUMENTS, switch

ANSWER = {
    "previous": {"spec_method": "draft", "num_speculative_tokens": 4},
    "active": {"spec_method": "none", "num_speculative_tokens": 0},
    "mode": "drain",
    "generation": 7,
    "in_flight": 0,
    "aborted": 0,
    "waited_ms": 812.44,
}


class Server:
    """Gives one answer and records the requests."""

    def __init__(self, status: int = 200, answer: Any = ANSWER) -> None:
        self.requests: list[httpx.Request] = []
        self._response = (status, answer)
        self.transport = httpx.MockTransport(self._answer)

    @property
    def body(self) -> Any:
        return json.loads(self.requests[-1].content)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        status, answer = self._response
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            return httpx.Response(status, text=answer)
        return httpx.Response(status, json=answer)


def test_a_running_server_is_switched(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    def active() -> str:
        return str(httpx.get(f"{url}/v1/spec_method").json()["spec_method"])

    assert main(["switch", "[ngram]", "--k", "3", "--reason", "a test", "--url", url]) == 0
    assert active() == "ngram"
    assert " -> ngram (k 3): immediate, generation " in capsys.readouterr().out
    assert main(["switch", "primary", "--mode", "drain", "--timeout", "5", "--url", url]) == 0
    assert active() == "draft"
    newest, oldest = httpx.get(f"{url}/v1/spec_method").json()["switches"][:2]
    assert (newest["mode"], oldest["reason"]) == ("drain", "a test")


def test_it_prints_the_previous_and_the_new_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert switch(["none", "--mode", "drain"], Server().transport) == 0
    out = capsys.readouterr().out
    assert out == "draft (k 4) -> none: drain, generation 7, 0 in flight, 812.4 ms\n"


@pytest.mark.parametrize(
    ("argv", "body"),
    [
        (["ngram"], {"speculative_model": "ngram", "mode": "immediate"}),
        (
            [
                *("ngram", "--k", "0", "--mode", "drain", "--timeout", "1.5"),
                *("--on-timeout", "move", "--reason", "x"),
            ],
            {
                "speculative_model": "ngram",
                "num_speculative_tokens": 0,
                "mode": "drain",
                "timeout_s": 1.5,
                "on_timeout": "move",
                "reason": "x",
            },
        ),
    ],
)
def test_it_sends_only_the_given_options(argv: list[str], body: dict[str, Any]) -> None:
    server = Server()
    assert switch(argv, server.transport) == 0
    assert server.body == body
    assert server.requests[0].url == "http://127.0.0.1:8000/v1/switch_spec_method"


def test_it_says_how_many_requests_the_drain_ended(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(answer=ANSWER | {"aborted": 3})
    assert switch(["none", "--mode", "drain", "--on-timeout", "abort"], server.transport) == 0
    assert "0 in flight, 3 aborted, 812.4 ms" in capsys.readouterr().out


def test_it_waits_longer_than_the_drain() -> None:
    for argv, seconds in ((["--timeout", "600"], 600), ([], 30)):
        server = Server()
        switch(["ngram", "--mode", "drain", *argv], server.transport)
        assert server.requests[0].extensions["timeout"]["read"] > seconds


def test_address_and_key_come_from_flags_or_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECGATE_URL", "http://10.0.0.1:81/")
    monkeypatch.setenv("SPECGATE_ADMIN_KEY", "one, two")
    server = Server()
    switch(["ngram"], server.transport)
    switch(["ngram", "--url", "http://b", "--admin-key", "three"], server.transport)
    seen = [(r.url.host, r.headers["authorization"]) for r in server.requests]
    assert seen == [("10.0.0.1", "Bearer one"), ("b", "Bearer three")]


REFUSAL = {"error": {"message": "Nothing\nchanged.", "type": "x", "param": None, "code": "a_b"}}
FAILURES: Sequence[tuple[int, Any, str]] = [
    (409, REFUSAL, "Nothing changed. (409 a_b)"),
    (502, "<html>", "http://127.0.0.1:8000 answered 502, but not as Specgate"),
    (500, {"detail": 1}, "the server answered 500"),
    (0, httpx.ConnectError("refused"), "cannot reach http://127.0.0.1:8000: refused"),
    (0, httpx.ReadTimeout("slow"), "http://127.0.0.1:8000 did not answer in time"),
]


@pytest.mark.parametrize(("status", "answer", "line"), FAILURES)
def test_a_failure_is_one_line_and_status_1(
    capsys: pytest.CaptureFixture[str], status: int, answer: Any, line: str
) -> None:
    assert switch(["ngram"], Server(status, answer).transport) == 1
    captured = capsys.readouterr()
    assert captured.err == f"specgate: error: {line}\n"
    assert captured.out == ""


def test_a_refusal_of_the_server_is_printed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["switch", "nobody", "--url", url]) == 1
    error = capsys.readouterr().err
    assert error.startswith("specgate: error: METHOD: there is no proposer 'nobody'")
    assert error.endswith("(404 proposer_not_found)\n")


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["draft", "--k", "99"], "--k is 99, more than 4"),
        (["draft", "--on-timeout", "move"], "--on-timeout needs mode drain"),
        (["draft", "--mode", "drain", "--timeout", "99999"], "--timeout: Input should be less"),
        (["draft", "--reason", "x" * 201], "--reason: "),
    ],
)
def test_a_refusal_names_the_argument_and_not_the_field(
    url: str, capsys: pytest.CaptureFixture[str], argv: list[str], reason: str
) -> None:
    assert main(["switch", *argv, "--url", url]) == 1
    assert capsys.readouterr().err.startswith(f"specgate: error: {reason}")


def test_every_field_that_is_sent_has_an_argument() -> None:
    server = Server()
    argv = ["a", "--k", "1", "--timeout", "1", "--on-timeout", "move", "--reason", "x"]
    switch([*argv, "--mode", "drain"], server.transport)
    assert set(server.body) == set(ARGUMENTS)


def test_a_wrong_value_of_a_variable_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECGATE_URL", "there")
    monkeypatch.setenv("SPECGATE_ADMIN_KEY", "a\x01b")
    assert main(["switch", "ngram"]) == 1
    assert "error: SPECGATE_ADMIN_KEY: the key has" in capsys.readouterr().err
    assert main(["switch", "ngram", "--admin-key", "a"]) == 1
    assert "error: SPECGATE_URL: 'there' cannot be used" in capsys.readouterr().err


def test_a_key_may_be_non_ascii() -> None:
    server = Server()
    assert switch(["ngram", "--admin-key", "schlüssel"], server.transport) == 0
    assert dict(server.requests[0].headers.raw)[b"Authorization"] == "Bearer schlüssel".encode()


def test_a_server_that_does_not_listen_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert main(["switch", "ngram", "--url", f"http://127.0.0.1:{port}"]) == 1
    assert capsys.readouterr().err.startswith("specgate: error: cannot reach http://127.0.0.1:")


@pytest.mark.parametrize("address", ["127.0.0.1:8000", "http://[::1", "http://a:port"])
def test_an_invalid_address_is_an_error(capsys: pytest.CaptureFixture[str], address: str) -> None:
    assert main(["switch", "ngram", "--url", address]) == 1
    error = capsys.readouterr().err
    assert error.startswith("specgate: error: ")
    assert error.count("\n") == 1


def test_an_unknown_argument_is_reported_with_the_one_most_like_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        switch(["ngram", "--timeout-s=2"], Server().transport)
    error = "unrecognized arguments: --timeout-s=2; did you mean --timeout?"
    assert capsys.readouterr().err == f"specgate: error: {error}\n"


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["ngram", "suffix"],
        ["ngram", "--k", "-1"],
        ["ngram", "--k", "many"],
        ["ngram", "--mode", "later"],
        ["ngram", "--timeout", "0"],
        ["ngram", "--timeout", "inf"],
        ["ngram", "--nope"],
    ],
)
def test_invalid_arguments_are_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        switch(argv, Server().transport)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("specgate: error: ")
    assert error.count("\n") == 1
