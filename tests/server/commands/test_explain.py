"""`specgate explain` with a server, and bodies that it cannot send."""

import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.cli import main
from server.commands.explain import explain

ANSWER: dict[str, Any] = {
    "spec_method": "auto",
    "num_speculative_tokens": 8,
    "selected_by": "rule",
    "rule": "quotes",
    "why": "the rule 'quotes' is the first\x1b[31m",
    "request": {"model": "m", "api_key": None, "prompt_tokens": 7},
    "rules": [
        {"rule": "a", "matches": False, "why": "structured is False, not True"},
        {"rule": "quotes", "matches": True, "why": "every condition holds"},
    ],
    "policy": {
        "name": "auto",
        "parameters": {},
        "state": {"drafting": ["ngram"]},
        "suspended": True,
        "decisions": {"ngram": 3, "none": 1, "draft": 0},
    },
}


class Server:
    """Answers, and remembers the last body."""

    def __init__(self, status: int = 200, answer: Any = ANSWER) -> None:
        self.body: Any = None
        self._response = (status, answer)
        self.transport = httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.body = json.loads(request.content)
        assert request.url.path == "/v1/explain"
        return httpx.Response(self._response[0], json=self._response[1])


def test_it_prints_the_method_the_reason_and_every_rule(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert explain(['{"prompt": "a"}'], Server().transport) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.splitlines() == [
        "method     auto (k 8)",
        "why        the rule 'quotes' is the first [31m",
        "request    model m, prompt_tokens 7",
        "policy     auto: ngram 75%, none 25% in the last minute",
        "guard      holds it at plain decoding, because speculation lost time",
        'state      drafting ["ngram"]',
        "rules      a       does not match: structured is False, not True",
        "           quotes  matches: every condition holds",
    ]


def test_the_body_comes_from_an_argument_a_file_or_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    file = tmp_path / "body.json"
    file.write_text(json.dumps(chat))
    monkeypatch.setattr("sys.stdin", io.StringIO('{"prompt": "a"}'))
    for words, sent in (
        ([json.dumps(chat)], {"chat": chat}),
        ([str(file)], {"chat": chat}),
        (["-"], {"completion": {"prompt": "a"}}),
        (["hi", "--chat"], {"chat": chat}),
        (
            ['{"prompt": "a"}', "--header", "x-app=a=b", "--api-key-name", "team-a"],
            {"completion": {"prompt": "a"}, "headers": {"x-app": "a=b"}, "api_key": "team-a"},
        ),
    ):
        server = Server()
        assert explain(words, server.transport) == 0
        assert server.body == sent


@pytest.mark.parametrize("body", ["no-such-file", "{", "[1]", "", '{"prompt": }'])
def test_a_body_that_is_not_a_json_object_is_refused(
    capsys: pytest.CaptureFixture[str], body: str
) -> None:
    assert explain([body], Server().transport) == 2
    assert capsys.readouterr().err.startswith("specgate: error: BODY: ")


def test_a_file_that_is_not_text_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "body").write_bytes(b"\xff\xfe")
    assert explain([str(tmp_path / "body")], Server().transport) == 2
    assert "BODY: " in capsys.readouterr().err


def test_a_bad_header_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        explain(["{}", "--header", "x-app"], Server().transport)
    assert "--header: must be NAME=VALUE" in capsys.readouterr().err


def test_a_refusal_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    refused = {"error": {"message": "prompt is required.", "type": "x", "code": None}}
    assert explain(["{}"], Server(400, refused).transport) == 1
    assert "prompt is required." in capsys.readouterr().err


def test_a_refusal_names_the_field_of_the_body(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body = '{"messages": [{"role": "user", "content": "a"}], "spec_decode": {"propser": "x"}}'
    assert main(["explain", body, "--url", url]) == 1
    assert capsys.readouterr().err.startswith(
        "specgate: error: spec_decode.propser is not a known field; did you mean "
        "spec_decode.proposer?"
    )


def test_a_running_server_explains(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", '{"prompt": "a", "speculative_model": "auto"}', "--json", "--url", url]
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (answer["spec_method"], answer["selected_by"]) == ("auto", "request")
