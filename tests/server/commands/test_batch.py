"""`specgate batch` on the fake engine: a file of requests, a file of responses."""

import fcntl
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from server.batches.folder import Folder
from server.batches.lines import BatchError, Output
from server.cli import main
from server.commands import BAD_SETTING, FAILED, INTERRUPTED

FAKE = ("--engine", "fake")


def completion(custom_id: Any, **body: Any) -> dict[str, Any]:
    body = {"prompt": f"def {custom_id}(", "max_tokens": 5, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


def chat(custom_id: str, **body: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": custom_id}], "max_tokens": 5, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


class Files:
    """An input and an output."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "in.jsonl"
        self.target = folder / "out.jsonl"

    def write(self, lines: Iterable[Any]) -> None:
        """Writes the input; text stays as it is."""
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        self.source.write_text("".join(f"{text}\n" for text in texts))

    def run(self, *flags: str) -> int:
        return main(["batch", str(self.source), str(self.target), *flags, *FAKE])

    @property
    def entries(self) -> list[dict[str, Any]]:
        text = self.target.read_text()
        assert text.endswith("\n") or not text
        return [json.loads(line) for line in text.splitlines()]

    def entry(self, custom_id: str) -> dict[str, Any]:
        (found,) = [entry for entry in self.entries if entry["custom_id"] == custom_id]
        return found


@pytest.fixture(autouse=True)
def _logs_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that runs in this process must not configure the logs of later tests."""
    monkeypatch.setattr("server.commands.batch.configure_logs", lambda *_, **__: None)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_every_request_has_an_entry_in_openais_format(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write([completion("a"), chat("b", spec_decode={"proposer": "suffix"}), completion("c")])
    assert files.run() == 0
    assert {entry["custom_id"] for entry in files.entries} == {"a", "b", "c"}
    assert len({entry["id"] for entry in files.entries}) == 3
    entry = files.entry("b")
    assert list(entry) == ["id", "custom_id", "response", "error"]
    assert entry["error"] is None
    response = entry["response"]
    assert (response["status_code"], len(response["request_id"])) == (200, 32)
    assert response["body"]["object"] == "chat.completion"
    assert response["body"]["usage"]["completion_tokens"] == 5
    assert response["body"]["metrics"]["speculative_decoding"]["proposer"] == "suffix"
    assert "3 done, 0 skipped, 0 left, 0 failed in all; 15 tokens" in capsys.readouterr().out


def test_responses_are_answered_and_their_tokens_counted(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {"input": "hi", "max_output_tokens": 5, "spec_decode": {"proposer": "suffix"}}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": body}
    bad = {**line, "custom_id": "b", "body": {**body, "background": True}}
    files.write([line, bad, {**line, "custom_id": "c", "body": {**body, "stream": True}}])
    assert files.run() == FAILED
    answer = files.entry("a")["response"]["body"]
    assert (answer["object"], answer["usage"]["output_tokens"]) == ("response", 5)
    assert answer["metrics"]["speculative_decoding"]["proposer"] == "suffix"
    assert "body.background" in files.entry("b")["error"]["message"]
    assert files.entry("c")["error"]["code"] == "invalid_line"
    assert "5 tokens" in capsys.readouterr().out


def test_no_limit_of_a_server_ends_a_request(files: Files) -> None:
    files.write([completion(f"r{number}", n=2) for number in range(12)])
    limits = {
        "--max-num-seqs": "1",
        "--max-queued-requests": "0",
        "--max-queued-prompt-tokens": "1",
        "--max-key-requests": "1",
        "--max-key-requests-per-minute": "1",
        "--queue-timeout-s": "0.001",
        "--request-timeout-s": "0.001",
        "--first-token-timeout-s": "0.001",
    }
    flags = [word for pair in limits.items() for word in pair]
    assert files.run("--concurrency", "12", *flags) == 0
    assert len(files.entries) == 12


def test_bodies_are_refused_as_over_http(files: Files) -> None:
    files.write([completion("a"), completion("b", temperature=9), completion("c", model="nobody")])
    assert files.run("--concurrency", "1") == FAILED
    assert [entry["response"]["status_code"] for entry in files.entries] == [200, 400, 404]
    error = files.entry("b")["response"]["body"]["error"]
    assert (error["param"], error["type"]) == ("temperature", "invalid_request_error")


def test_invalid_lines_have_an_entry_with_line_and_reason(files: Files) -> None:
    good = completion("good")
    files.write(
        [
            "{broken",
            "",
            "[]",
            {**good, "custom_id": 7},
            {**good, "custom_id": "get", "method": "GET"},
            {**good, "custom_id": "else", "url": "/v1/embeddings"},
            {**good, "custom_id": "bodiless", "body": "text"},
            completion("stream", stream=True),
            good,
        ]
    )
    assert files.run() == FAILED
    assert files.entry("good")["response"]["status_code"] == 200
    bad = {e["error"]["line"]: e for e in files.entries if e["response"] is None}
    assert sorted(bad) == [1, 3, 4, 5, 6, 7, 8]
    assert {entry["error"]["code"] for entry in bad.values()} == {"invalid_line"}
    messages = {line: entry["error"]["message"] for line, entry in bad.items()}
    assert messages[1].startswith("line 1: not valid JSON: ")
    assert messages[5] == "line 5: method must be POST"
    urls = "/v1/chat/completions, /v1/completions, /v1/responses"
    assert messages[6] == f"line 6: url must be one of {urls}"
    assert [bad[line]["custom_id"] for line in (1, 4, 5)] == [None, None, "get"]
    before = files.target.read_text()
    assert files.run() == FAILED
    assert files.target.read_text() == before


def test_a_repeated_custom_id_is_refused_before_anything_runs(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write([completion("a"), completion("b"), completion("a")])
    assert files.run() == FAILED
    assert not files.target.exists()
    assert "lines 1 and 3 have the same custom_id, 'a'" in capsys.readouterr().err


@pytest.mark.parametrize("torn", ["", "{", '{"id": "batch_req_1", "cust'])
def test_it_continues_where_it_stopped(
    files: Files, capsys: pytest.CaptureFixture[str], torn: str
) -> None:
    files.write([completion("a"), completion("b")])
    assert files.run() == 0
    first = files.target.read_text()
    with files.target.open("a") as out:
        out.write(torn)
    files.write([completion("c"), completion("b"), completion("a"), completion("d")])
    assert files.run() == 0
    assert files.target.read_text().startswith(first)
    assert sorted(entry["custom_id"] for entry in files.entries) == ["a", "b", "c", "d"]
    assert "2 done, 2 skipped, 0 left" in capsys.readouterr().out


def test_no_engine_starts_if_no_request_is_left(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write([completion("a", max_tokens=-1)])
    assert files.run() == FAILED
    capsys.readouterr()
    # The entry still counts as failed.
    assert files.run() == FAILED
    assert capsys.readouterr().out.startswith("0 done, 1 skipped, 0 left, 1 failed in all;")


@pytest.mark.parametrize("text", ['{"an": "object"}\n', "a letter\n", "a letter", '{"id": "x"'])
def test_an_output_that_is_not_of_a_batch_is_not_changed(
    files: Files, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    files.write([completion("a")])
    files.target.write_text(text)
    assert files.run() == FAILED
    assert files.target.read_text() == text
    assert "line 1 is not the output of a batch" in capsys.readouterr().err


def test_two_batches_cannot_write_the_same_file(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write([completion("a")])
    with files.target.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert files.run() == FAILED
    assert "another batch writes to it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        ([], BAD_SETTING, "the two files come first"),
        (["--engine", "fake", "in", "out"], BAD_SETTING, "the two files come first"),
        (["in", "out", "--concurrency", "0"], BAD_SETTING, "--concurrency: must be at least 1"),
        (["in", "out", "--nope"], BAD_SETTING, "--nope: unknown flag"),
        (["nowhere.jsonl", "out"], FAILED, "nowhere.jsonl: No such file"),
        (["in", "no/such/folder"], FAILED, "no/such/folder: No such file"),
        (["in", "in"], BAD_SETTING, "is the input"),
        (["in", "out", "--engine-args", '{"fake_fail_start": "no memory"}'], FAILED, "no memory"),
        (["in", "out", "--engine-args", '{"fake_step_ms": -1}'], BAD_SETTING, "fake_step_ms"),
    ],
)
def test_an_invalid_command_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").write_text(json.dumps(completion("a")) + "\n")
    flags = FAKE if "--engine" not in argv else ()
    try:
        ended: object = main(["batch", *argv, *flags])
    except SystemExit as exit:
        ended = exit.code
    assert ended == status
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_the_help_names_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["batch", "--help"])
    assert ended.value.code == 0
    assert "IN.jsonl OUT.jsonl" in capsys.readouterr().out


def test_the_servers_key_variables_are_ignored(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECGATE_API_KEY", "secret")
    files.write([completion("a")])
    assert files.run() == 0


def test_the_folder_of_a_server_that_runs_is_left_alone(files: Files, tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "files"))
    files.write([completion("a")])
    assert files.run("--files-dir", str(tmp_path / "files")) == 0
    folder.close()


def test_concurrency_limits_the_requests_in_flight(files: Files) -> None:
    files.write([completion(f"r{i}", max_tokens=20, ignore_eos=True) for i in range(6)])
    begun = time.monotonic()
    options = json.dumps({"fake_step_ms": 10, "fake_acceptance": 0.0})
    assert files.run("--concurrency", "1", "--engine-args", options) == 0
    assert time.monotonic() - begun > 6 * 20 * 0.01


@pytest.mark.engine
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.prove)]
)
def test_an_interrupted_batch_can_be_continued(files: Files, number: int) -> None:
    files.write([completion(f"r{i}", max_tokens=40, ignore_eos=True) for i in range(200)])
    flags = [*FAKE, "--engine-args", json.dumps({"fake_step_ms": 20, "fake_acceptance": 0.0})]
    command = [sys.executable, "-m", "server.cli", "batch", str(files.source), str(files.target)]
    process = subprocess.Popen(
        [*command, "--concurrency", "4", *flags],
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job ignores SIGINT, and so do its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while not files.target.exists() or not files.target.read_text():
        assert time.monotonic() < deadline, "nothing was answered"
        time.sleep(0.02)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    assert "run the same command to continue" in error
    assert "Traceback" not in error
    answered = len(files.entries)
    assert 0 < answered < 200
    assert all(entry["response"]["status_code"] == 200 for entry in files.entries)
    assert files.run() == 0
    assert len(files.entries) == 200
    assert len({entry["custom_id"] for entry in files.entries}) == 200


def test_a_dead_engine_ends_the_batch_and_loses_no_request(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write([completion(f"r{i}", max_tokens=30, ignore_eos=True) for i in range(20)])
    options = json.dumps({"fake_die_after_steps": 40})
    assert files.run("--concurrency", "2", "--engine-args", options) == FAILED
    assert "The engine died" in capsys.readouterr().err
    assert all(entry["response"]["status_code"] == 200 for entry in files.entries)
    assert len(files.entries) < 20
    assert files.run() == 0
    assert len(files.entries) == 20


def test_a_full_disk_ends_the_batch_with_one_line(
    files: Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(output: Output, entry: dict[str, Any]) -> None:
        raise BatchError("No space left on device")

    monkeypatch.setattr(Output, "write", full)
    files.write([completion("a"), completion("b")])
    assert files.run() == FAILED
    error = capsys.readouterr().err
    assert error == "specgate: error: No space left on device\n"


def test_only_regular_files_are_accepted(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.write([completion("a")])
    files.target.symlink_to("/dev/null")
    assert files.run() == FAILED
    assert "is not a regular file" in capsys.readouterr().err


def test_routing_rules_decide_in_a_batch_where_no_request_has_a_key(files: Files) -> None:
    rules = [
        {"name": "team", "match": {"api_key": "team-a"}, "use": {"proposer": "suffix"}},
        {"name": "cold", "match": {"temperature": {"max": 0}}, "use": {"proposer": "ngram"}},
    ]
    files.write([completion("a", temperature=0), completion("b")])
    flags = ["--named-api-key", "team-a=sk", "--routing-rules", json.dumps(rules)]
    assert files.run(*flags, "--spec-method", "draft") == 0
    for name, proposer in (("a", "ngram"), ("b", "draft")):
        body = files.entry(name)["response"]["body"]
        assert body["metrics"]["speculative_decoding"]["proposer"] == proposer
