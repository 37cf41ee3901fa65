"""`switch --all` and `status --all` with servers, and with addresses that do not answer."""

import asyncio
import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from server.cli import main
from server.commands import BAD_SETTING, DIFFERING, FAILED, INTERRUPTED
from server.fleet.coordinator import switch_fleet
from server.fleet.http_replica import HttpReplica
from server.fleet.peers import read_state
from server.fleet.replica import ReplicaState, ReplicaUnreachable
from tests.server.conftest import StartServer
from tests.server.threaded import ADMIN_KEY, ThreadedServer

CLOSED = "http://127.0.0.1:9"


@pytest.fixture
def servers(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> list[ThreadedServer]:
    monkeypatch.setenv("SPECGATE_ADMIN_KEY", ADMIN_KEY)
    # A busy machine may take its time.
    patient = partial(switch_fleet, lease_s=300.0, call_s=300.0)
    monkeypatch.setattr("server.commands.fleet_switch.switch_fleet", patient)
    monkeypatch.setattr("server.fleet.view.VIEW_ANSWER_S", 300.0)
    return [start_server() for _ in range(2)]


def urls(*servers: ThreadedServer | str) -> list[str]:
    return [word for s in servers for word in ("--url", s if isinstance(s, str) else s.url)]


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    """The one line of JSON; the servers' logs are on the same standard output."""
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    return json.loads(line)


def has(server: ThreadedServer) -> tuple[str, int]:
    state = server.runtime.fleet.state()
    return state.active.spec_method, state.fleet_generation


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
    assert read_state(str(kept)) == servers[0].runtime.fleet.state()

    assert main(["status", "--all", *urls(*servers)]) == 0
    assert "2 replicas; ngram (k 3), generation 1; all that answer agree" in capsys.readouterr().out


def test_the_report_is_json_too(
    servers: list[ThreadedServer], capsys: pytest.CaptureFixture[str]
) -> None:
    policies = '{"load": {"disable_by_batch_size": 3}}'
    words = ["switch", "load", "--all", "--json", "--policies", policies, *urls(*servers)]
    assert main(words) == 0
    report = printed(capsys)
    assert (report["outcome"], report["fleet_generation"]) == ("switched", 1)
    assert [one["replica"] for one in report["replicas"]] == [server.url for server in servers]
    assert servers[1].runtime.fleet.state().policies == {"load": {"disable_by_batch_size": 3}}
    assert main(["status", "--all", "--json", *urls(*servers)]) == 0
    fleet = printed(capsys)
    assert fleet["agrees"] is True
    assert [one["spec_method"]["fleet"]["generation"] for one in fleet["replicas"]] == [1, 1]


def test_a_server_that_does_not_answer_is_named_and_nothing_changes(
    servers: list[ThreadedServer], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept = tmp_path / "state.json"
    words = ["switch", "ngram", "--all", *urls(*servers, CLOSED), "--write-state", str(kept)]
    assert main(words) == FAILED
    out = capsys.readouterr().out
    assert "unchanged: nothing has changed, " in out
    assert f"{CLOSED}: cannot be reached" in out
    assert [has(server) for server in servers] == [("none", 0)] * 2
    assert not kept.exists()


def test_a_state_that_no_replica_gives_is_a_failure(
    servers: list[ThreadedServer],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The replicas switch, and then do not answer."""

    async def silent(_: HttpReplica) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(HttpReplica, "state", silent)
    monkeypatch.setattr("server.commands.fleet_switch.STATE_S", 0.05)
    kept = tmp_path / "state.json"
    kept.write_text("as before")
    words = ["switch", "ngram", "--all", *urls(*servers), "--write-state", str(kept)]
    assert main(words) == FAILED
    captured = capsys.readouterr()
    assert "switched: 2 of 2 replicas switched" in captured.out
    assert f"--write-state: {kept}: not written: no replica" in captured.err
    assert kept.read_text() == "as before"


def test_the_state_file_is_replaced_as_one(servers: list[ThreadedServer], tmp_path: Path) -> None:
    """A file that was opened before the switch is read as it was, to its end."""
    kept = tmp_path / "state.json"
    kept.write_text("as before")
    with kept.open() as reader:
        words = ["switch", "ngram", "--all", *urls(*servers), "--write-state", str(kept)]
        assert main(words) == 0
        assert reader.read() == "as before"
    assert read_state(str(kept)) == servers[0].runtime.fleet.state()
    assert list(tmp_path.iterdir()) == [kept]


def test_sigterm_rolls_a_switch_back(
    servers: list[ThreadedServer],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The signal comes when all replicas are reserved and none is told to commit."""
    rolled_back = []
    rollback = HttpReplica.rollback

    async def interrupted(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    async def counted(replica: HttpReplica, *arguments: Any) -> ReplicaState:
        state = await rollback(replica, *arguments)
        rolled_back.append(state)
        return state

    monkeypatch.setattr(HttpReplica, "commit", interrupted)
    monkeypatch.setattr(HttpReplica, "rollback", counted)
    assert main(["switch", "ngram", "--all", *urls(*servers)]) == INTERRUPTED
    assert [state.active.spec_method for state in rolled_back] == ["none"] * 2
    assert not any(server.runtime.switcher.busy for server in servers)
    out = capsys.readouterr().out
    assert "rolled_back: every replica has what it had before, generation 2, " in out
    assert "; interrupted" in out


def test_sigterm_after_the_switch_leaves_the_report(
    servers: list[ThreadedServer],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The signal comes when all have switched and are asked what they have."""

    async def interrupted(_: HttpReplica) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    monkeypatch.setattr(HttpReplica, "state", interrupted)
    monkeypatch.setattr("server.commands.fleet_switch.STATE_S", 300.0)
    kept = tmp_path / "state.json"
    kept.write_text("as before")
    words = ["switch", "ngram", "--all", *urls(*servers), "--write-state", str(kept)]
    assert main(words) == INTERRUPTED
    assert [has(server) for server in servers] == [("ngram", 1)] * 2
    captured = capsys.readouterr()
    assert captured.out.count("switched: 2 of 2 replicas switched") == 1
    assert f"--write-state: {kept}: not written: interrupted" in captured.err
    assert kept.read_text() == "as before"


def test_an_interrupted_switch_names_the_server_that_is_not_known_to_be_back(
    servers: list[ThreadedServer],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rollback = HttpReplica.rollback

    async def interrupted(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    async def one_is_gone(replica: HttpReplica, *arguments: Any) -> ReplicaState:
        if replica.name == servers[1].url:
            raise ReplicaUnreachable("gone")
        return await rollback(replica, *arguments)

    monkeypatch.setattr(HttpReplica, "commit", interrupted)
    monkeypatch.setattr(HttpReplica, "rollback", one_is_gone)
    assert main(["switch", "ngram", "--all", *urls(*servers)]) == INTERRUPTED
    assert f"not known: {servers[1].url}." in capsys.readouterr().out


def test_a_server_that_does_not_answer_can_be_skipped(
    servers: list[ThreadedServer], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["switch", "ngram", "--all", "--skip-unreachable", *urls(*servers, CLOSED)]
    assert main(words) == DIFFERING
    assert f"partial: 2 of 3 replicas switched; not known: {CLOSED}" in capsys.readouterr().out
    assert main(["status", "--all", *urls(*servers, CLOSED)]) == DIFFERING
    assert "1 do not answer" in capsys.readouterr().out


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
        (["switch", "ngram", "--skip-unreachable"], "--skip-unreachable: needs --all"),
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
