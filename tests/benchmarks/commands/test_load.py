"""`specgate bench load` against a gateway on the fake engine, and the arguments that it refuses."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from benchmarks.load import sides
from server.commands import FAILED, INTERRUPTED
from server.commands.bench import bench
from tests.benchmarks.refusal import complaint
from tests.cases import proved_beyond

SHORT = ["--requests", "4", "--repetitions", "2", "--max-tokens", "12", "--warm-up", "1"]


def load(url: str, out: Path, *words: str) -> int:
    return bench(["load", "--url", url, "--out", str(out), *SHORT, *words])


def test_proposers_of_one_server_are_compared(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    words = ["--side", "none", "--side", "ngram", "--slo", "e2e=5000", "--ignore-eos"]
    assert load(url, tmp_path, *words, "--concurrency", "2", "--rate", "50") == 0
    whole = json.loads((tmp_path / "load.json").read_text())
    names = [result["name"] for result in whole["results"]]
    assert names == ["rag, 2 concurrent", "rag, 50 requests/s"]
    closed, opened = whole["results"]
    assert closed["condition"]["arrivals"] == {"concurrency": 2}
    assert opened["condition"]["arrivals"] == {"rate": 50.0, "burstiness": 1.0}
    plain, ngram = closed["figures"]
    assert (plain["requests"], plain["tokens"], plain["errors"]) == (8, 8 * 12, {})
    assert plain["tokens_per_step"] == 1.0
    assert ngram["tokens_per_step"] > 1.2, "the fake engine accepts seven of ten"
    assert list(ngram["drafts"]) == ["ngram"]
    assert plain["good_share"] == 1.0
    assert closed["ratios"][0]["side"] == "ngram"
    assert closed["ratios"][0]["e2e"]["pairs"] == 8
    lines = [json.loads(line) for line in (tmp_path / "load.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * 2 * 2 * 4
    assert {line["label"] for line in lines} == {"quote", "free"}
    assert whole["plan"]["requests"] == 4
    assert whole["servers"]["ngram"]["model"] == "specgate-demo"
    assert "**rag, 2 concurrent**" in (tmp_path / "load.md").read_text()
    assert "**rag, 2 concurrent**" in capsys.readouterr().out
    assert (tmp_path / "load.html").read_text().startswith("<!doctype html>")


def test_a_file_of_completions_and_labels_with_their_own_bodies(url: str, tmp_path: Path) -> None:
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text(
        '{"prompt": "def f(", "label": "code"}\n{"prompt": "Hello", "label": "talk"}\n'
    )
    body = {"body_by_label": {"code": {"spec_decode": {"proposer": "ngram"}}}}
    side = f"routed={json.dumps(body)}"
    assert load(url, tmp_path, "--side", side, "--workload", str(prompts), "--no-html") == 0
    lines = [json.loads(line) for line in (tmp_path / "load.jsonl").read_text().splitlines()]
    assert {line["label"]: list(line["drafts"]) for line in lines}["code"] == ["ngram"]
    assert {line["label"]: list(line["drafts"]) for line in lines}["talk"] != ["ngram"]
    assert not (tmp_path / "load.html").exists()


def test_a_ramp_and_a_shift_have_a_timeline(url: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ["--workload", "shift", "--ramp", "1:4:1", "--seconds", "0.5", "--no-prime"]
    assert bench(["load", "--url", url, "--out", str(tmp_path), *words]) == 0
    assert "Over time" in (tmp_path / "load.html").read_text()


def test_every_workload_is_sent_in_bursts_from_one_half_of_the_prompts(
    url: str, tmp_path: Path
) -> None:
    sent: dict[str, set[str]] = {}
    for split in ("tune", "report"):
        words = [
            w for name in ("mixed", "random", "shift:code-edit:free") for w in ("--workload", name)
        ]
        words += ["--split", split, "--rate", "200", "--burstiness", "0.25", "--repetitions", "1"]
        words += ["--requests", "8", "--max-tokens", "4", "--no-prime", "--no-html"]
        assert bench(["load", "--url", url, "--out", str(tmp_path), *words]) == 0
        lines = [json.loads(line) for line in (tmp_path / "load.jsonl").read_text().splitlines()]
        labels = {(line["condition"].split(",")[0], line["label"]) for line in lines}
        assert labels == {
            *(("mixed", label) for label in ("quote", "free", "edit", "random")),
            ("random", "random"),
            *(("shift:code-edit:free", label) for label in ("edit", "free")),
        }
        assert {line["error"] for line in lines} == {None}
        assert {line["temperature"] for line in lines if line["condition"][:6] == "random"} == {2.0}
        assert all(line["condition"].endswith(" 200 requests/s, burstiness 0.25") for line in lines)
        sent[split] = {line["prompt"] for line in lines}
    assert not sent["tune"] & sent["report"]


def test_a_side_that_refuses_every_request_fails_but_is_written(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = 'bad={"body_by_label": {"quote": {}, "free": {"temperature": 9}, "random": {"n": 0}}}'
    words = ["--side", f"good={url}", "--side", bad, "--workload", "random", "--no-html"]
    assert load(url, tmp_path, *words) == FAILED
    captured = capsys.readouterr()
    assert "no request succeeded: bad (random, 8 concurrent): 400: n: " in captured.err
    markdown = (tmp_path / "load.md").read_text()
    for text in (captured.out, markdown):
        assert "| `bad` | 8 | 400: 8 | 0.0 | 0.00 |" in text
        assert "\n`bad`: 8 of 8 requests failed, the first with 400: n: " in text
        assert "`good`: " not in text


def test_no_key_is_written(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_TEST_KEY", "very-secret")
    assert load(url, tmp_path, "--key-variable", "BENCH_TEST_KEY", "--no-html") == 0
    files = [path.read_text() for path in tmp_path.iterdir()]
    assert len(files) == 3
    assert not any("very-secret" in text for text in files)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--side", "a b|c"], "--side: 'a b|c': a name has letters"),
        (["--side", 'a={"urls": 1}'], "--side: a: unknown field 'urls'"),
        (["--side", "a=http://u:p@h"], "--side: a: url: h: give the address without user"),
        (["--side", "a", "--side", "a"], "--side: two sides have the name 'a'"),
        (["--key-variable", "NO_SUCH_VARIABLE"], "the variable NO_SUCH_VARIABLE is not set"),
        (["--workload", "shift:a:b"], "no kind of prompts 'a'"),
        (["--concurrency", "0"], "--concurrency: must be an integer from 1 to 4096, got '0'"),
        (["--rate", "nan"], "--rate: must be a number from 0.001 to 10000, got 'nan'"),
        (["--burstiness", "0"], "--burstiness: must be a number from 0.01"),
        (["--ramp", "1:64"], "--ramp: must be LOW:HIGH:LOW"),
        (["--ramp", "4:2:4"], "--ramp: must be LOW:HIGH:LOW"),
        (["--slo", "p99=3"], "--slo: must be one of ttft, tpot, e2e"),
        (["--slo", "ttft=fast"], "--slo: must be a number from 0.001"),
        (["--temperature", "3"], "--temperature: must be a number from 0 to 2"),
        (["--time-limit", "inf"], "--time-limit: must be a number"),
        (["--split", "half"], "--split"),
        (["--warm-up", "65"], "--warm-up"),
    ],
)
def test_wrong_arguments_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in complaint(bench, ["load", "--no-html", *words], capsys)


def test_a_missing_file_and_an_unreachable_server_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(["load", "--workload", str(tmp_path / "no.jsonl"), "--no-html"]) == FAILED
    assert "no.jsonl" in capsys.readouterr().err
    assert load("http://127.0.0.1:9", tmp_path, "--no-html") == FAILED
    assert "--side server: http://127.0.0.1:9/v1/models: connection" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def odd_url() -> Iterator[Callable[[bytes | None], str]]:
    """Starts servers that answer every request with the same bytes, or never."""
    with ExitStack() as stack:

        def start(answer: bytes | None) -> str:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def run() -> None:
                with suppress(OSError):  # the listener is closed at the end
                    while True:
                        connection, _ = listener.accept()
                        stack.callback(connection.close)
                        if answer is not None:
                            connection.recv(1 << 16)
                            connection.sendall(answer)
                            connection.shutdown(socket.SHUT_RDWR)

            threading.Thread(target=run, daemon=True).start()
            return f"http://127.0.0.1:{listener.getsockname()[1]}"

        yield start


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "404: Not Found; if the server"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", "200: <html>; if the server"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n", "connection: closed before the resp"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "connection: the response is not HTTP"),
        (b"", "connection: "),
        (None, "timeout: no end after 0.3 s\n"),
    ],
)
def test_a_server_that_is_none_is_reported_at_once(
    answer: bytes | None,
    complaint: str,
    odd_url: Callable[[bytes | None], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # An answer may take its time on a busy machine.
    monkeypatch.setattr(sides, "ASK_LIMIT_S", 0.3 if answer is None else 60.0)
    address, began = odd_url(answer), time.monotonic()
    assert load(address, tmp_path, "--no-html") == FAILED
    captured = capsys.readouterr()
    assert captured.err.startswith(
        f"specgate: error: --side server: {address}/v1/models: {complaint}"
    )
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert time.monotonic() - began < 50
    assert list(tmp_path.iterdir()) == []


class Plain(BaseHTTPRequestHandler):
    """A server that knows OpenAI's fields only."""

    def do_GET(self) -> None:
        self.answer(200, "application/json", b'{"data": [{"id": "m"}]}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "ignore_eos" in body:
            self.answer(400, "application/json", b'{"error": {"message": "what is ignore_eos?"}}')
        else:
            text = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
            self.answer(200, "text/event-stream", 3 * text + b"data: [DONE]\n\n")

    def answer(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def test_a_side_that_refuses_to_ignore_the_end_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Plain) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        for words, warned in ((["--ignore-eos"], True), ([], False)):
            assert load(address, tmp_path, "--no-html", *words) == 0
            printed = capsys.readouterr().out
            assert ("Warning: server refuses ignore_eos; its answers" in printed) == warned
            assert printed.endswith("\n")
            assert not printed.endswith("\n\n")
        server.shutdown()
        thread.join(60)


def served(url: str) -> float:
    """Requests that the server has answered so far."""
    lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
    return sum(float(ln.split()[-1]) for ln in lines if ln.startswith("vllm:request_success_total"))


@pytest.mark.engine
@pytest.mark.parametrize("sent", proved_beyond([signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]))
def test_an_interrupted_run_writes_what_it_has(
    url: str, tmp_path: Path, sent: signal.Signals
) -> None:
    words = ["bench", "load", "--url", url, "--out", str(tmp_path), "--seconds", "120"]
    command = [sys.executable, "-m", "server.cli", *words, "--warm-up", "1", "--no-prime"]
    before = served(url)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        deadline = time.monotonic() + 60
        while served(url) < before + 20:
            assert time.monotonic() < deadline, "nothing was measured"
            assert running.poll() is None
            time.sleep(0.1)
        running.send_signal(sent)
        assert running.wait(60) == INTERRUPTED
        assert running.stderr is not None
        assert "Traceback" not in running.stderr.read()
    (only,) = json.loads((tmp_path / "load.json").read_text())["passes"]
    assert not only["is_complete"]
    assert (tmp_path / "load.jsonl").read_text().count("\n") > 0
