"""`specgate status`: tables, or one JSON object."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from server.cli import main
from server.commands.status import SWITCHES_SHOWN, status
from tests.cases import proved_beyond

METHOD: dict[str, Any] = {
    "spec_method": "ngram",
    "num_speculative_tokens": 4,
    "generation": 9,
    "since": 1795254640.9,
    "in_flight": {"ngram": 3, "draft": 1},
    "engine": {"state": "serving", "reason": None, "retry_after_s": None},
    "parsers": {
        "tool_call": {"name": "hermes", "reason": "it is named by a setting"},
        "reasoning": {"name": None, "reason": "it is turned off"},
    },
    "drain": {
        "to": {"spec_method": "none", "num_speculative_tokens": 0},
        "held": 2,
        "waited_ms": 1250.0,
        "timeout_s": 30.0,
    },
    "proposers": {
        "ngram": {"drafted": 800, "acceptance_rate": 0.625, "mean_acceptance_length": 2.875},
        "draft": {"drafted": 0, "acceptance_rate": None, "mean_acceptance_length": None},
    },
    "switches": [
        {
            "when": 1795254640.9 - i,
            "who": "key:9f86d081",
            "from": {"spec_method": "none", "num_speculative_tokens": 0},
            "to": {"spec_method": "ngram", "num_speculative_tokens": 4},
            "mode": "drain",
            "outcome": "switched",
            "took_ms": 3.21,
            "reason": f"[red]number {i}\x1b[31m",
        }
        for i in range(SWITCHES_SHOWN + 1)
    ],
}
PROPOSERS = {
    "data": [
        {
            "name": name,
            "method": method,
            "num_speculative_tokens": 4,
            "roles": roles,
            "state": "loaded",
            "draft_latency_ms": latency,
        }
        for name, method, roles, latency in (
            ("ngram", "ngram", ["primary", "backup"], 0.126),
            ("draft", "draft_model", [], None),
        )
    ]
}


def answering(method: Callable[[], dict[str, Any]] = lambda: METHOD) -> httpx.MockTransport:
    def answer(request: httpx.Request) -> httpx.Response:
        known = {"/v1/spec_method": method, "/v1/proposers": lambda: PROPOSERS}
        return httpx.Response(200, json=known[request.url.path]())

    return httpx.MockTransport(answer)


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_the_table_has_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert status([], answering()) == 0
    out = capsys.readouterr().out
    lines = [" ".join(row) for row in rows(out)]
    assert lines[0].startswith("active ngram (k 4), generation 9, since 20")
    assert lines[1] == "in flight 4 (draft 1, ngram 3)"
    assert lines[2] == "tools hermes: it is named by a setting"
    assert lines[3] == "reasoning none: it is turned off"
    assert lines[4] == "drain to none: 2 held, 1.2 of 30 s"
    assert "* ngram ngram 4 primary, backup loaded 0.62 2.88 0.13" in lines
    assert "draft draft_model 4 loaded - - -" in lines
    (heading,) = [line for line in lines if line.startswith("proposer ")]
    assert heading.endswith("acceptance rate mean acceptance length draft latency ms")


def test_few_drafted_tokens_are_no_figure(capsys: pytest.CaptureFixture[str]) -> None:
    probe = {"drafted": 5, "acceptance_rate": 1.0, "mean_acceptance_length": 6.0}
    assert status([], answering(lambda: METHOD | {"proposers": {"draft": probe}})) == 0
    lines = [" ".join(row) for row in rows(capsys.readouterr().out)]
    assert "draft draft_model 4 loaded of only 5 - -" in lines


def test_of_several_engines_those_that_do_not_serve_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    serving = {"state": "serving", "reason": None, "retry_after_s": None}
    dead = {"state": "restarting", "reason": "It was killed.", "retry_after_s": 3.0}
    several = METHOD | {"engine": serving, "engines": [serving, dead]}
    assert status([], answering(lambda: several)) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "engine 1 restarting: It was killed." in lines
    assert not any(line.startswith("engine 0") for line in lines)


def test_an_engine_that_does_not_serve_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    engine = {"state": "restarting", "reason": "It was killed.", "retry_after_s": 3.0}
    assert status([], answering(lambda: METHOD | {"engine": engine})) == 0
    lines = [" ".join(row) for row in rows(capsys.readouterr().out)]
    assert "engine restarting: It was killed." in lines


def test_an_active_policy_is_shown_with_its_choices_and_its_guard(
    capsys: pytest.CaptureFixture[str],
) -> None:
    policy = {
        "name": "auto",
        "parameters": {},
        "state": {"drafting": ["ngram"]},
        "suspended": True,
        "decisions": {"none": 1, "ngram": 3},
    }
    assert status([], answering(lambda: METHOD | {"policy": policy})) == 0
    lines = [" ".join(row) for row in rows(capsys.readouterr().out)]
    assert "policy auto: ngram 75%, none 25% in the last minute" in lines
    assert "guard holds it at plain decoding, because speculation lost time" in lines
    quiet = policy | {"suspended": False, "decisions": {}, "state": {}}
    assert status([], answering(lambda: METHOD | {"policy": quiet})) == 0
    out = capsys.readouterr().out
    assert "auto: planned nothing in the last minute" in out
    assert "guard" not in out


def test_the_reasons_of_switches_are_shown_without_markup(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert status([], answering()) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    shown = [line for line in out.splitlines() if "key:9f86d081" in line]
    assert len(shown) == SWITCHES_SHOWN
    assert "[red]number 0" in shown[0]
    assert (
        " ".join(shown[0].split())
        .split(" ", 2)[2]
        .startswith("none ngram (k 4) drain switched 3.2 key:9f86d081")
    )


def test_json_output_is_both_responses_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["--json"], answering()) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"spec_method": METHOD, "proposers": PROPOSERS["data"]}


@pytest.mark.parametrize("flags", [["--json"], []])
def test_watch_updates_until_it_is_stopped(
    capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    looks: list[int] = []
    slept: list[float] = []

    def method() -> dict[str, Any]:
        looks.append(len(looks))
        return {**METHOD, "generation": 100 + len(looks)}

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        status(["--watch", *flags], answering(method), sleep)
    assert (len(looks), slept) == (3, [2.0] * 3)
    out = capsys.readouterr().out
    assert all(str(generation) in out for generation in (101, 102, 103)), "also to a file"


@pytest.mark.parametrize("flags", proved_beyond([""], ["", "--json"]))
def test_a_closed_pipe_ends_it_without_an_error(url: str, flags: str) -> None:
    command = f"{sys.executable} -m server.cli status --watch {flags} --url {url} | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_a_running_server_is_shown(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    body = {"prompt": "a", "max_tokens": 100, "ignore_eos": True, "speculative_model": "suffix"}
    httpx.post(f"{url}/v1/completions", json=body).raise_for_status()
    assert main(["status", "--url", url]) == 0
    found = {
        row[0] if row[0] != "*" else row[1]: row for row in rows(capsys.readouterr().out) if row
    }
    assert {"ngram", "suffix", "draft", "draft-small", "active"} <= set(found)
    assert 0 < float(found["suffix"][-3]) < 1
    assert float(found["suffix"][-2]) > 1
    assert main(["status", "--json", "--url", url]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last)["spec_method"]["window_s"] == 60


def test_an_address_without_a_scheme_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["--url", "127.0.0.1:8000"], answering()) == 1
    assert "--url: '127.0.0.1:8000'" in (told := capsys.readouterr().err)
    assert "http://" in told


def test_a_missing_key_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    error = {"message": "This path needs an admin key.", "code": "invalid_api_key"}
    refusing = httpx.MockTransport(lambda _: httpx.Response(401, json={"error": error}))
    assert status([], refusing) == 1
    told = capsys.readouterr().err
    assert told == "specgate: error: This path needs an admin key. (401 invalid_api_key)\n"
