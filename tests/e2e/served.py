"""A real server in its own process, started as a user starts it."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[2]
MODEL = "specgate-demo"
PROPOSERS = {
    "ngram": 5,
    "suffix": 8,
    "draft": 4,
    "draft-small": 4,
    "medusa": 4,
    "mlp-speculator": 4,
    "eagle": 4,
    "eagle3": 4,
}
"""The demo's proposers and their k."""

START_S, STOP_S = 900, 60


def documented_url() -> str:
    """The address that README's examples use."""
    urls = set(re.findall(r"curl (?:-N )?(http://[\w.]+:\d+)", (ROOT / "README.md").read_text()))
    assert len(urls) == 1, f"README.md uses more than one server: {urls}"
    return urls.pop()


def environment() -> dict[str, str]:
    """This process's environment, with no proxy between it and the server, and no settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPECGATE_")}
    return kept | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "HF_HUB_OFFLINE": "1"}


def _launch(log: Path, *flags: str) -> "subprocess.Popen[bytes]":
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "server.cli", "serve", *flags],
            cwd=ROOT,
            env=environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def listening_port(process: "subprocess.Popen[bytes]") -> int:
    """The TCP port on which a process listens, once it does."""
    seen, ports = psutil.Process(process.pid), set[int]()

    def listens() -> bool:
        assert process.poll() is None, "it ended"
        ports.update(c.laddr.port for c in seen.net_connections() if c.status == "LISTEN")
        return bool(ports)

    wait_until(listens, START_S, "it listens")
    (port,) = ports
    return port


def _address(process: "subprocess.Popen[bytes]") -> str:
    return f"http://127.0.0.1:{listening_port(process)}"


@dataclass(frozen=True)
class Served:
    """A running server.

    Attributes:
        log: the file with all its output.
        key: what `get` and `post` send; a server without keys needs none.
    """

    url: str
    process: "subprocess.Popen[bytes]"
    log: Path
    key: str = ""

    @classmethod
    def start(cls, url: str, log: Path, *flags: str) -> "Served":
        """Starts `specgate serve`, without flags as `make serve` does, and waits for it."""
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.socket() as probe:
            taken = probe.connect_ex((host, int(port))) == 0
        assert not taken, f"something listens on {url} already: README's examples need that port"
        return cls._when_ready(lambda: url, _launch(log, *flags), log)

    @classmethod
    def _when_ready(
        cls, address: Callable[[], str], process: "subprocess.Popen[bytes]", log: Path
    ) -> "Served":
        try:
            served = cls(address(), process, log)
            wait_until(served._ready, START_S, "the server is ready")
        except BaseException:
            process.kill()
            process.wait()
            print(log.read_text(errors="replace")[-4000:])
            raise
        return served

    def with_key(self, key: str) -> "Served":
        """The same server, asked with a key."""
        return replace(self, key=key)

    @classmethod
    def start_beside(cls, log: Path, *flags: str) -> "Served":
        """Starts another server on a free port, for tests that must not affect the others."""
        process = _launch(log, "--port", "0", *flags)
        return cls._when_ready(lambda: _address(process), process, log)

    @property
    def engine(self) -> psutil.Process:
        """The engine's process."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        (engine,) = [child for child in children if "EngineCore" in " ".join(child.cmdline())]
        return engine

    def stop(self) -> int:
        """Stops it as an orchestrator does; returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def kill(self) -> None:
        """Kills it, if it still runs."""
        self.process.kill()
        self.process.wait()

    def tail(self) -> str:
        """The end of its output."""
        return self.log.read_text(errors="replace")[-4000:]

    def logged(self, event: str) -> list[str]:
        """The lines of an event in its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if f" {event} " in line]

    def get(self, path: str, **kwargs: Any) -> httpx.Response:
        """A GET that must succeed."""
        url, kwargs = f"{self.url}{path}", self._with_key(kwargs)
        response = httpx.get(url, trust_env=False, timeout=60, **kwargs)
        assert response.status_code == 200, response.text
        return response

    def post(self, path: str, body: Any, **kwargs: Any) -> httpx.Response:
        """A POST of JSON that must succeed."""
        url, kwargs = f"{self.url}{path}", self._with_key(kwargs)
        response = httpx.post(url, json=body, trust_env=False, timeout=120, **kwargs)
        assert response.status_code == 200, response.text
        return response

    def switch(self, name: str, mode: str = "immediate") -> dict[str, Any]:
        """Makes a method the active one."""
        body = {"speculative_model": name, "mode": mode}
        result: dict[str, Any] = self.post("/v1/switch_spec_method", body).json()
        return result

    def scrape(self) -> "Samples":
        """The metrics as they are now."""
        return Samples(self.get("/metrics").text)

    def wait_until_idle(self, seconds: float = 60) -> None:
        """Waits until no sequence and no request is left; fails after `seconds`."""
        wait_until(self._idle, seconds, "the engine is idle")

    def _with_key(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        own = {"authorization": f"Bearer {self.key}"} if self.key else {}
        return {**kwargs, "headers": own | kwargs.get("headers", {})}

    def _ready(self) -> bool:
        assert self.process.poll() is None, f"the server ended:\n{self.tail()}"
        try:
            return httpx.get(f"{self.url}/ready", trust_env=False, timeout=60).status_code == 200
        except httpx.TransportError:
            return False

    def _idle(self) -> bool:
        scrape = self.scrape()
        queued = scrape("vllm:num_requests_running") + scrape("vllm:num_requests_waiting")
        return not queued and self.get("/v1/spec_method").json()["in_flight"] == {}


class Samples:
    """One scrape."""

    def __init__(self, text: str) -> None:
        families = list(text_string_to_metric_families(text))
        self.families = [family.name for family in families]
        self._samples = [sample for family in families for sample in family.samples]

    @property
    def names(self) -> set[str]:
        """The names of all series."""
        return {sample.name for sample in self._samples}

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of the series that have these labels; the series must exist."""
        assert name in self.names, f"{name} is not in the metrics"
        return sum(
            sample.value
            for sample in self._samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """The sums by the values of one label."""
        values = {s.labels[label] for s in self._samples if s.name == name}
        return {value: self(name, **{label: value}, **labels) for value in values}


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Polls until the condition holds; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.05)
