"""A server whose output and audit go to a full disk serves as any other."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.test_cli import COMMAND, ROOT, START_S, environment, listening_port

FULL = Path("/dev/full")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not FULL.exists(), reason="only Linux has /dev/full, where every write finds a full disk"
    ),
]


@pytest.mark.parametrize("required", [False, True])
def test_a_full_disk_stops_no_request_and_no_switch_whose_record_is_not_required(
    required: bool,
) -> None:
    with FULL.open("wb") as full:
        process = subprocess.Popen(
            [
                *(*COMMAND, "serve", "--engine", "fake", "--port", "0"),
                *("--audit-log", str(FULL)),
                *(["--audit-required"] if required else []),
            ],
            cwd=ROOT,
            env=environment(),
            stdout=full,
            stderr=full,
        )
    try:
        # Its output, which would have the address, is lost.
        address = f"http://127.0.0.1:{listening_port(process.pid)}"
        with httpx.Client(base_url=address, trust_env=False, timeout=60) as client:
            wait_until_ready(client, process)
            for method in ("ngram", "none", "suffix"):
                body: dict[str, Any] = {"speculative_model": method}
                switched = client.post("/v1/switch_spec_method", json=body).status_code
                assert switched == (503 if required else 200)
                answer = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3})
                assert answer.status_code == 200
            assert client.get("/nope").status_code == 404
            shown = client.get("/v1/spec_method").json()
            outcome = "refused" if required else "switched"
            assert [record["outcome"] for record in shown["switches"]] == [outcome] * 3
            figures = figures_of(client.get("/metrics").text)
            assert figures['specgate_audit_write_failures_total{record="outcome"}'] == 3
            intents = figures['specgate_audit_write_failures_total{record="intent"}']
            assert intents == (3 if required else 0)
            assert figures["specgate_log_write_failures_total"] > 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def figures_of(text: str) -> dict[str, float]:
    """Series -> value."""
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {series: float(value) for series, value in pairs}


def wait_until_ready(client: httpx.Client, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_S
    while True:
        assert process.poll() is None, "the server ended"
        assert time.monotonic() < deadline, "the server is not ready"
        try:
            if client.get("/ready").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)


def test_python_writes_to_dev_full_fail() -> None:
    """Otherwise the test above shows nothing."""
    program = "import sys; sys.stderr.write('x'); sys.stderr.flush()"
    with FULL.open("wb") as full:
        result = subprocess.run([sys.executable, "-c", program], stderr=full, check=False)
    assert result.returncode != 0
