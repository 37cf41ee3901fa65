"""One large body never keeps the others waiting: each is answered, and `/health` meanwhile too."""

import json
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.e2e.large_bodies import LARGE
from tests.e2e.raw_http import Probe, request, send_until_closed, status
from tests.e2e.served import Served, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.prove, pytest.mark.timeout(1200)]

BLOCK_S = 1.0
"""The longest that another client may wait on a quiet machine is a fraction of this."""

ATTEMPTS = 3
"""How often a body is sent while the machine delays the other client."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("bodies") / "server.log"
    engine = json.dumps({"fake_step_ms": 1})
    served = Served.start_beside(log, "--engine", "fake", "--engine-args", engine)
    try:
        yield served
        assert served.stop() == 0, served.tail()
        assert "Traceback" not in log.read_text(errors="replace"), served.tail()
    finally:
        served.kill()


@pytest.mark.parametrize("name", LARGE)
def test_a_large_body_blocks_no_request(served: Served, name: str) -> None:
    """No attempt may compute for long. A wait may be long without it: the gateway had no core."""
    for _ in range(ATTEMPTS):
        probe = probe_beside(served, name)
        assert probe.worst_cpu_s < BLOCK_S
        if probe.worst_s < BLOCK_S:
            return
    pytest.fail(f"another client waited for {probe.worst_s:.1f} s in the last of all attempts")


def loop_cpu_s(process: psutil.Process) -> float:
    """The CPU time of the thread that answers every client, which is the main one."""
    (main,) = [thread for thread in process.threads() if thread.id == process.pid]
    return float(main.user_time + main.system_time)


def probe_beside(served: Served, name: str) -> Probe:
    """What another client saw while a body was sent and answered."""
    body = LARGE[name]
    content = request(body.path, body.make(), "connection: close")
    process = psutil.Process(served.process.pid)
    rss, cpu = process.memory_info().rss, sum(process.cpu_times()[:2])
    probe = Probe(served.url, lambda: loop_cpu_s(process))
    thread = threading.Thread(target=probe.run)
    thread.start()
    wait_until(lambda: probe.asked > 0, 120, "the other client is answered")
    begun = time.monotonic()
    answer = send_until_closed(served.url, [content], 300)
    took_s = time.monotonic() - begun
    probe.stop()
    thread.join()
    used_s = sum(process.cpu_times()[:2]) - cpu
    growth = (process.memory_info().rss - rss) / 2**20
    print(
        f"| {name}, {len(content) / 1e6:.1f} MB | {status(answer)} | {took_s:.2f} "
        f"| {probe.worst_s:.2f} | {probe.worst_cpu_s:.2f} | {used_s:.1f} | {growth:+.0f} |"
    )
    assert status(answer) == body.status, answer[:1000]
    return probe
