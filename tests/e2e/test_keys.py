"""A real server with TLS and a key file: rotation under load, the commands over HTTPS, its log."""

import json
import shutil
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.commands.status import status
from server.commands.switch import switch
from tests.e2e.served import ROOT, STOP_S, environment, wait_until

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        shutil.which("openssl") is None,
        reason="openssl is missing: apt install openssl; it makes the certificate",
    ),
]

KEYS = "team api sk-team-1\nops admin sk-ops-1\nscraper metrics sk-metrics-1\n"


@dataclass
class Secured:
    """The server, and its files."""

    folder: Path
    process: "subprocess.Popen[bytes]"
    clients: list[httpx.Client] = field(default_factory=list)

    @property
    def key_file(self) -> Path:
        """The file that SIGHUP reads again."""
        return self.folder / "keys"

    @property
    def authority(self) -> str:
        """The file with the certificate."""
        return str(self.folder / "certificate.pem")

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of the log; each must be an object of JSON."""
        *lines, _unfinished = (self.folder / "server.log").read_text().split("\n")
        return [json.loads(line) for line in lines]

    @property
    def url(self) -> str:
        """Its address, once it serves."""
        return next(str(line["url"]) for line in self.log if line["event"] == "ready")

    def client(self, key: str = "") -> httpx.Client:
        """A client with a key."""
        context = ssl.create_default_context(cafile=self.authority)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        client = httpx.Client(
            base_url=self.url, headers=headers, verify=context, trust_env=False, timeout=60
        )
        self.clients.append(client)
        return client

    def status(self, key: str, path: str = "/v1/models") -> int:
        """The status of a GET with a key."""
        return self.client(key).get(path).status_code

    def rotate(self, keys: str, event: str) -> None:
        """Writes the key file, sends SIGHUP, and waits for the event in the log."""
        before = self.count(event)
        self.key_file.write_text(keys)
        self.process.send_signal(signal.SIGHUP)
        wait_until(lambda: self.count(event) > before, 60, event)

    def count(self, event: str) -> int:
        """How often the log has an event."""
        return sum(line["event"] == event for line in self.log)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """The server; it must end with status 0."""
    folder = tmp_path_factory.mktemp("keys")
    names = "subjectAltName=IP:127.0.0.1"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-keyout", "key.pem", "-out", "certificate.pem", "-days", "30"),
            *("-subj", "/CN=specgate", "-addext", names),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    (folder / "keys").write_text(KEYS)
    flags = {
        "--engine": "fake",
        "--engine-args": '{"fake_step_ms": 20, "fake_length": 5000}',
        "--port": "0",
        "--key-file": str(folder / "keys"),
        "--ssl-certfile": str(folder / "certificate.pem"),
        "--ssl-keyfile": str(folder / "key.pem"),
        "--audit-log": str(folder / "audit.jsonl"),
    }
    words = [word for pair in flags.items() for word in pair]
    with (folder / "server.log").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "server.cli", "serve", *words, "--log-json"],
            cwd=ROOT,
            env=environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    server = Secured(folder, process)
    try:
        wait_until(lambda: server.count("ready") == 1, 60, "the server is ready")
        yield server
        for client in server.clients:
            client.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0
    finally:
        process.kill()


def test_each_key_opens_what_its_role_says(secured: Secured) -> None:
    opened = {
        key: [secured.status(key, path) for path in ("/v1/models", "/v1/proposers", "/metrics")]
        for key in ("", "sk-wrong", "sk-team-1", "sk-ops-1", "sk-metrics-1")
    }
    assert opened == {
        "": [401, 401, 401],
        "sk-wrong": [401, 401, 401],
        "sk-team-1": [200, 401, 200],
        "sk-ops-1": [200, 200, 200],
        "sk-metrics-1": [401, 401, 200],
    }


def test_plain_http_is_not_answered(secured: Secured) -> None:
    plain = secured.url.replace("https:", "http:")
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{plain}/health", trust_env=False)


def test_the_commands_speak_https(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--url", secured.url, "--admin-key", "sk-ops-1"]
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert status(words) != 0
    assert "certificate" in capsys.readouterr().err.lower()
    monkeypatch.setenv("SSL_CERT_FILE", str(secured.folder / "missing.pem"))
    assert status(words) != 0
    missing = secured.folder / "missing.pem"
    assert f"SSL_CERT_FILE: {missing} cannot be used" in capsys.readouterr().err
    monkeypatch.setenv("SSL_CERT_FILE", secured.authority)
    assert status(words) == 0
    assert switch(["suffix", *words]) == 0
    assert "-> suffix" in capsys.readouterr().out


class Stream(threading.Thread):
    """Reads a stream to its end."""

    def __init__(self, client: httpx.Client) -> None:
        super().__init__(daemon=True)
        self.client = client
        self.begun = threading.Event()
        self.lines: list[str] = []
        self.start()

    def run(self) -> None:
        """Sends the request."""
        body = {"prompt": "def f(x):", "max_tokens": 300, "stream": True, "ignore_eos": True}
        with self.client.stream("POST", "/v1/completions", json=body, timeout=60) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                self.lines += [line] if line else []
                self.begun.set()


def test_keys_are_rotated_under_load_and_no_request_is_lost(secured: Secured) -> None:
    streams = [Stream(secured.client("sk-team-1")) for _ in range(16)]
    assert all(stream.begun.wait(60) for stream in streams)
    both = KEYS + "team api sk-team-2\n"
    secured.rotate(both, "keys_reloaded")
    assert (secured.status("sk-team-1"), secured.status("sk-team-2")) == (200, 200)
    secured.rotate(both.replace("team api sk-team-1\n", ""), "keys_reloaded")
    assert (secured.status("sk-team-1"), secured.status("sk-team-2")) == (401, 200)
    assert any(stream.is_alive() for stream in streams), "no stream ran during the rotation"
    for stream in streams:
        stream.join(60)
        assert stream.lines[-1] == "data: [DONE]"
        last = json.loads(stream.lines[-2].removeprefix("data: "))
        assert last["choices"][0]["finish_reason"] == "length"
    secured.rotate(KEYS, "keys_reloaded")


def test_a_wrong_file_changes_nothing_and_its_line_is_named(secured: Secured) -> None:
    secured.rotate(KEYS + "team api sk-team-2 sk-3\n", "keys_not_reloaded")
    reason = next(line["reason"] for line in secured.log if line["event"] == "keys_not_reloaded")
    assert "line 4: must have a name, a role and a key, but has 4 columns" in reason
    assert (secured.status("sk-team-1"), secured.status("sk-team-2")) == (200, 401)
    figures = secured.client("sk-metrics-1").get("/metrics").text
    assert 'specgate_key_reloads_total{outcome="refused"} 1.0' in figures
    secured.rotate(KEYS, "keys_reloaded")


def test_changes_are_recorded_by_the_keys_name_in_a_private_file(secured: Secured) -> None:
    body = {"speculative_model": "ngram", "reason": 'a\n{"event": "admin_change"}\x1b[2J\u2028'}
    answer = secured.client("sk-ops-1").post("/v1/switch_spec_method", json=body)
    assert answer.status_code == 200
    path = secured.folder / "audit.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert records[-1]["reason"] == body["reason"]
    assert {record["who"] for record in records} == {"key:ops"}


def test_no_client_can_forge_a_line_of_the_log_and_no_key_prompt_or_answer_is_in_it(
    secured: Secured,
) -> None:
    client = secured.client("sk-team-1")
    forged = '\r\n{"event": "admin_change", "who": "key:ops"}\r\n'
    attempts: list[dict[str, Any]] = [
        {"url": "/v1/%0d%0a%7b%22event%22:%22forged%22%7d", "method": "GET"},
        {"url": "/v1/models/%1b%5b2J%e2%80%a8", "method": "GET"},
        {"url": "/v1/models?secret-query", "method": "GET"},
        {"url": "/v1/models", "method": "GET", "headers": {"x-request-id": "a b\t{}"}},
        {"url": "/v1/models", "method": "GET", "headers": {"user-agent": "\x1b[2J"}},
        {"url": "/v1/models", "method": "FORGED"},
        {"url": "/v1/completions", "method": "POST", "json": {"prompt": forged, "max_tokens": 1}},
        {"url": "/v1/completions", "method": "POST", "json": {"prompt": "x", forged: 1}},
        {"url": "/v1/completions", "method": "POST", "json": {"model": forged, "prompt": "x"}},
        {"url": "/v1/completions", "method": "POST", "content": b"{secret-prompt"},
        {
            "url": "/v1/models",
            "method": "GET",
            "headers": {"authorization": "Bearer sk-secret-guess"},
        },
    ]
    for attempt in attempts:
        client.request(**attempt)
    body = {"prompt": "secret-prompt", "max_tokens": 20}
    answer = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    assert len(answer) > 20

    def of_ops() -> int:
        return sum(line.get("key") == "ops" for line in secured.log if line["event"] == "request")

    before = of_ops()
    assert secured.status("sk-ops-1") == 200
    wait_until(lambda: of_ops() > before, 60, "the last request is in the log")
    # Each line is an object of JSON: `log` has parsed it.
    lines = secured.log
    assert {line["who"] for line in lines if line["event"] == "admin_change"} <= {"key:ops"}
    assert "forged" not in {line["event"] for line in lines}
    text = (secured.folder / "server.log").read_text()
    assert text.isascii()
    for secret in ("sk-team", "sk-ops", "sk-secret", "secret-prompt", "secret-query", answer):
        assert secret not in text, secret
    requests = [line for line in lines if line["event"] == "request"]
    assert {line["peer"] for line in requests} == {"127.0.0.1"}
    assert {line.get("key") for line in requests} == {None, "team", "ops"}
    refused = [line for line in requests if line["status"] == 401]
    assert refused
    assert all("key" not in line for line in refused)
