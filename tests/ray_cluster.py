"""A Ray cluster of one node, as `ray start` makes it, for the tests that need one.

Everything listens on loopback and on ports of its own, so that another cluster of the machine is
not disturbed.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOST = "127.0.0.1"
START_S = 180
OBJECT_STORE_BYTES = 100 << 20
NUM_WORKER_PORTS = 90
ABSENT = "ray is not installed; make prove installs it"

# `make ray` leaves a token in the user's home. With one, `ray start` asks for it, and a program
# that is given the cluster's address does not send it.
os.environ["RAY_AUTH_MODE"] = "disabled"

_PORTS = (
    "port",
    "node-manager-port",
    "object-manager-port",
    "ray-client-server-port",
    "runtime-env-agent-port",
    "dashboard-agent-grpc-port",
    "dashboard-agent-listen-port",
    "metrics-export-port",
)


def free_ports(number: int) -> int:
    """The first of `number` ports in a row that are free."""
    for first in range(21210, 60000 - number, number):
        try:
            for port in range(first, first + number):
                with socket.socket() as probe:
                    probe.bind((HOST, port))
        except OSError:
            continue
        return first
    raise OSError("no free ports")


@contextmanager
def cluster(num_cpus: int = 8) -> Iterator[str]:
    """Runs a node with these cores, however many the machine has. Yields its address."""
    first = free_ports(NUM_WORKER_PORTS + len(_PORTS) + 1)
    ports = {name: first + i for i, name in enumerate(_PORTS)}
    least = first + len(_PORTS)
    # Below it are sockets, whose paths can have only 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
            *(f"--{name}={port}" for name, port in ports.items()),
            *(f"--min-worker-port={least}", f"--max-worker-port={least + NUM_WORKER_PORTS}"),
            *(f"--node-ip-address={HOST}", "--include-dashboard=false", "--disable-usage-stats"),
            *(f"--num-cpus={num_cpus}", f"--object-store-memory={OBJECT_STORE_BYTES}"),
            f"--temp-dir={folder}",
        ]
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        # Actors find what is tested here, not what is installed.
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        with (Path(folder) / "ray.log").open("wb") as log:
            process = subprocess.Popen(
                command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            _wait_until_up(process, ports["port"], Path(folder) / "ray.log")
            yield f"{HOST}:{ports['port']}"
        finally:
            process.terminate()
            process.wait(60)


def _wait_until_up(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while "Ray runtime started" not in log.read_text():
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.2)
    socket.create_connection((HOST, port), 10).close()
