"""A real Prometheus that scrapes servers of a test, and answers queries."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.served import listening_port, wait_until

SCRAPE_S = 1
"""Seconds between two scrapes: tests have no time for fifteen."""

JOB = "specgate"
UNPACKED = str(Path(sys.executable).parent)
"""Where the Makefile puts the program if Debian's package is not installed."""


def need_prometheus() -> str:
    """The program; skips the test where it is missing."""
    program = shutil.which("prometheus") or shutil.which("prometheus", path=UNPACKED)
    if program is None:
        pytest.skip("Prometheus is not installed: Debian's package `prometheus` has it")
    return program


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    url: str

    def at(self, expr: str, time_s: float) -> list[dict[str, Any]]:
        """The series of an instant query."""
        return self._ask("query", {"query": expr, "time": time_s})

    def over(self, expr: str, start_s: float, end_s: float, step_s: float) -> list[dict[str, Any]]:
        """The series of a range query."""
        return self._ask(
            "query_range", {"query": expr, "start": start_s, "end": end_s, "step": step_s}
        )

    def label_values(self, label: str) -> list[str]:
        """The values of a label."""
        response = httpx.get(f"{self.url}/api/v1/label/{label}/values", trust_env=False, timeout=60)
        values: list[str] = response.json()["data"]
        return values

    def _ask(self, route: str, params: dict[str, Any]) -> list[dict[str, Any]]:
        response = httpx.get(
            f"{self.url}/api/v1/{route}", params=params, trust_env=False, timeout=60
        )
        body = response.json()
        assert body["status"] == "success", f"{params['query']}: {body['error']}"
        result: list[dict[str, Any]] = body["data"]["result"]
        return result


@contextmanager
def scraping(folder: Path, servers: Sequence[str]) -> Iterator[Prometheus]:
    """A Prometheus that scrapes these servers (`host:port`) while the block runs."""
    program = need_prometheus()
    config = {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "scrape_timeout": f"{SCRAPE_S}s"},
        "scrape_configs": [{"job_name": JOB, "static_configs": [{"targets": list(servers)}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{listening_port(process)}"
        wait_until(lambda: _is_ready(url, process), 60, "Prometheus is ready")
        yield Prometheus(url)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_ready(url: str, process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, "Prometheus ended"
    try:
        return httpx.get(f"{url}/-/ready", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
