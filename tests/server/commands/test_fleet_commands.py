"""`switch --all` and `status --all` with servers, and with addresses that do not answer."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from server.cli import main
from server.commands import BAD_SETTING, DIFFERING, FAILED, INTERRUPTED
from server.fleet.desired import DesiredState, read_state
from server.fleet.http_fleet import HttpFleet
from tests.server.conftest import StartServer
from tests.server.fleet.patience import be_patient
from tests.server.threaded import ADMIN_KEY, ThreadedServer

CLOSED = "http://127.0.0.1:9"


@pytest.fixture
def servers(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> list[ThreadedServer]:
    monkeypatch.setenv("SPECGATE_ADMIN_KEY", ADMIN_KEY)
    be_patient(monkeypatch)
    return [start_server() for _ in range(2)]


def urls(*servers: ThreadedServer | str) -> list[str]:
    return [word for s in servers for word in ("--url", s if isinstance(s, str) else s.url)]


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    """The one line of JSON; the servers' logs are on the same standard output."""
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    return json.loads(line)


def has(server: ThreadedServer) -> tuple[str, int]:
    state = server.runtime.fleet.state()
    return state.active.spec_method, state.fleet.generation


def test_all_servers_are_switched_and_shown(
    servers: list[ThreadedServer], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept = tmp_path / "state.json"
    words = ["switch", "[ngram]", "--k", "3", "--all", "--reason", "a test", *urls(*servers)]
    assert main([*words, "--write-state", str(kept)]) == 0
    out = capsys.readouterr().out
    assert [has(server) for server in servers] == [("ngram", 1)] * 2
    for server in servers:
        (line,) = [line for line in out.splitlines() if line.startswith(server.url)]
        assert " ".join(line.split()).startswith(f"{server.url} switched none ngram (k 3) 1 0")
    assert "switched: 2 of 2 replicas switched, generation 1" in out
    assert read_state(str(kept)) == servers[0].runtime.fleet.desired

    assert main(["status", "--all", *urls(*servers)]) == 0
    assert "2 replicas; ngram (k 3), generation 1; all that answer agree" in capsys.readouterr().out


def test_the_report_is_json_too(
    servers: list[ThreadedServer], capsys: pytest.CaptureFixture[str]
) -> None:
    policies = '{"load": {"disable_by_batch_size": 3}}'
    words = ["switch", "load", "--all", "--json", "--policies", policies, *urls(*servers)]
    assert main(words) == 0
    report = printed(capsys)
    assert (report["outcome"], report["desired"]["generation"]) == ("switched", 1)
    assert [one["replica"] for one in report["replicas"]] == [server.url for server in servers]
    assert report["desired"]["policies"] == {"load": {"disable_by_batch_size": 3}}
    assert servers[1].runtime.fleet.desired == DesiredState(**report["desired"])
    assert main(["status", "--all", "--json", *urls(*servers)]) == 0
    fleet = printed(capsys)
    assert fleet["agrees"] is True
    assert [one["spec_method"]["fleet"]["generation"] for one in fleet["replicas"]] == [1, 1]


def test_a_server_that_does_not_answer_is_named_and_the_others_are_switched(
    servers: list[ThreadedServer], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "state.json"
    words = ["switch", "ngram", "--all", *urls(*servers, CLOSED), "--write-state", str(path)]
    assert main(words) == DIFFERING
    out = capsys.readouterr().out
    assert f"partial: 2 of 3 replicas switched; not yet: {CLOSED} (unknown). Those that lag" in out
    (line,) = [line for line in out.splitlines() if line.startswith(CLOSED)]
    assert "cannot be reached" in line
    assert [has(server) for server in servers] == [("ngram", 1)] * 2
    assert read_state(str(path)) == servers[0].runtime.fleet.desired
    assert main(["status", "--all", *urls(*servers, CLOSED)]) == DIFFERING
    assert "1 do not answer" in capsys.readouterr().out


def test_a_method_that_all_lack_changes_nothing(
    servers: list[ThreadedServer], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "state.json"
    words = ["switch", "nope", "--all", *urls(*servers), "--write-state", str(path)]
    assert main(words) == FAILED
    out = capsys.readouterr().out
    assert "unchanged: nothing has changed, " in out
    assert f"; {servers[0].url}: " in out
    assert [has(server) for server in servers] == [("none", 0)] * 2
    assert not path.exists()


def test_a_server_that_lags_is_named_with_the_reason(
    servers: list[ThreadedServer], start_server: StartServer, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking = start_server(proposer=[{"name": "suffix"}])
    every = urls(*servers, lacking)
    assert main(["switch", "ngram", "--all", *every]) == DIFFERING
    out = capsys.readouterr().out
    assert f"partial: 2 of 3 replicas switched; not yet: {lacking.url} (lags). Those that" in out
    (line,) = [line for line in out.splitlines() if line.startswith(lacking.url)]
    assert "ngram" in line
    assert main(["status", "--all", *every]) == DIFFERING
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("!")]
    assert lacking.url in line
    assert "differs from the others; lags: " in line


def test_the_state_file_is_replaced_as_one(servers: list[ThreadedServer], tmp_path: Path) -> None:
    """A file that was opened before the switch is read as it was, to its end."""
    kept = tmp_path / "state.json"
    kept.write_text("as before")
    with kept.open() as reader:
        words = ["switch", "ngram", "--all", *urls(*servers), "--write-state", str(kept)]
        assert main(words) == 0
        assert reader.read() == "as before"
    assert read_state(str(kept)) == servers[0].runtime.fleet.desired
    assert list(tmp_path.iterdir()) == [kept]


def test_a_command_that_is_interrupted_says_so_and_those_that_were_told_switch(
    servers: list[ThreadedServer],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = HttpFleet.set

    async def interrupted(fleet: HttpFleet, *arguments: Any) -> None:
        await told(fleet, *arguments)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    monkeypatch.setattr(HttpFleet, "set", interrupted)
    assert main(["switch", "ngram", "--all", *urls(*servers)]) == INTERRUPTED
    assert [has(server) for server in servers] == [("ngram", 1)] * 2
    assert "interrupted: the servers that were told change" in capsys.readouterr().err


def test_a_server_that_differs_is_marked(
    servers: list[ThreadedServer],
    start_server: StartServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["switch", "ngram", "--all", *urls(*servers)]) == 0
    other = start_server()
    capsys.readouterr()
    assert main(["status", "--all", *urls(*servers, other)]) == DIFFERING
    out = capsys.readouterr().out
    assert "3 replicas; ngram (k 5), generation 1; 1 differ" in out
    marked = [line.split()[1] for line in out.splitlines() if line.startswith("!")]
    assert marked == [other.url]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["switch", "ngram", *urls("http://a", "http://b")], "--url: several addresses need --all"),
        (["status", *urls("http://a", "http://b")], "--url: several addresses need --all"),
        (["switch", "ngram", "--write-state", "x"], "--write-state: needs --all"),
        (["switch", "ngram", "--policies", "{}", "--url", "x"], "--policies: needs --all"),
        (["switch", "ngram", "--json"], "--json: needs --all"),
        (["switch", "ngram", "--all", "--policies", "[]"], "must be a JSON object of objects"),
        (["switch", "ngram", "--all", "--url", "a:8000"], "it must begin with http"),
        (["switch", "ngram", "--all", "--on-timeout", "move"], "--on-timeout needs --mode drain"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    words: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status: Any
    try:
        status = main(words)
    except SystemExit as ended:
        status = ended.code
    assert status == BAD_SETTING
    assert error in capsys.readouterr().err
