"""Clients of a TLS port that never say a word: probes are answered, with few descriptors."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.certificates import Certificate
from tests.e2e.served import ROOT, Samples, environment, listening_port, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

DESCRIPTORS = 256
SILENT = 400


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    return Certificate.make(tmp_path)


@pytest.fixture
def process(tmp_path: Path, certificate: Certificate) -> Iterator["subprocess.Popen[bytes]"]:
    """A server with few descriptors."""
    files = ("--ssl-certfile", str(certificate.certfile), "--ssl-keyfile", str(certificate.keyfile))
    command = [sys.executable, "-m", "server.cli", "serve", "--engine", "fake", "--port", "0"]
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(
            ["sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh", *command, *files],
            cwd=ROOT,
            env=environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    yield process
    process.kill()
    process.wait()


def test_400_silent_connections_do_not_keep_probes_out(
    process: "subprocess.Popen[bytes]", certificate: Certificate, tmp_path: Path
) -> None:
    port = listening_port(process)
    context = certificate.for_client()

    def get(path: str) -> httpx.Response:
        url = f"https://localhost:{port}{path}"
        return httpx.get(url, verify=context, trust_env=False, timeout=30)

    wait_until(lambda: get("/ready").status_code == 200, 120, "it is ready")
    alone_s = max(times_s(get, 5))
    silent: list[socket.socket] = []
    attack = threading.Thread(
        target=lambda: silent.extend(
            socket.create_connection(("127.0.0.1", port)) for _ in range(SILENT)
        )
    )
    attack.start()
    beside = times_s(get, 40)
    beside_s = max(beside)
    attack.join(60)
    assert len(silent) == SILENT
    print(json.dumps({"alone_s": alone_s, "beside_s": beside_s}))
    # Many tests run at once, so a single probe may be slow.
    assert sorted(beside)[len(beside) // 2] < 1
    assert beside_s < 10
    assert psutil.Process(process.pid).num_fds() < DESCRIPTORS
    metrics = Samples(get("/metrics").text)
    assert metrics("specgate_descriptors_exhausted_total") == 0
    assert metrics("specgate_connections_closed_total", reason="refused") > SILENT - DESCRIPTORS
    assert metrics("specgate_tls_handshakes") <= metrics("specgate_connections_limit")
    # Handshakes that are not complete do not hold up the end.
    process.terminate()
    assert process.wait(60) == 0
    log = (tmp_path / "server.log").read_text()
    assert "Traceback" not in log
    assert log.count("connection_closed") < 10
    for connection in silent:
        connection.close()


def times_s(get: object, times: int) -> list[float]:
    """The seconds of so many probes, each on a connection of its own; all must succeed."""
    assert callable(get)
    seconds = []
    for _ in range(times):
        begun = time.monotonic()
        assert get("/health").status_code == 200
        seconds.append(time.monotonic() - begun)
    return seconds
