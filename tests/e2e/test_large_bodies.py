"""One large body never keeps the others waiting: each is answered, and `/health` meanwhile too."""

import json
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.e2e.large_bodies import LARGE
from tests.e2e.raw_http import Probe, request, send_until_closed, status
from tests.e2e.served import Served

pytestmark = [pytest.mark.engine, pytest.mark.prove, pytest.mark.timeout(1200)]

BLOCK_S = 1.0
"""The longest that another client may wait on a quiet machine is a fraction of this."""

ATTEMPTS = 3
"""A busy machine delays the answer of one. What the gateway itself holds up is in each."""


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
        served.process.kill()
        served.process.wait()


@pytest.mark.parametrize("name", LARGE)
def test_a_large_body_blocks_no_request(served: Served, name: str) -> None:
    assert any(longest_wait_beside(served, name) < BLOCK_S for _ in range(ATTEMPTS))


def longest_wait_beside(served: Served, name: str) -> float:
    """The longest wait of another client in seconds, while a body is sent and answered."""
    body = LARGE[name]
    content = request(body.path, body.make(), "connection: close")
    process = psutil.Process(served.process.pid)
    rss, cpu = process.memory_info().rss, sum(process.cpu_times()[:2])
    probe = Probe(served.url)
    thread = threading.Thread(target=probe.run)
    thread.start()
    begun = time.monotonic()
    answer = send_until_closed(served.url, [content], 300)
    took_s = time.monotonic() - begun
    probe.stop()
    thread.join()
    used_s = sum(process.cpu_times()[:2]) - cpu
    growth = (process.memory_info().rss - rss) / 2**20
    print(
        f"| {name}, {len(content) / 1e6:.1f} MB | {status(answer)} | {took_s:.2f} "
        f"| {probe.worst_s:.2f} | {used_s:.1f} | {growth:+.0f} |"
    )
    assert status(answer) == body.status, answer[:1000]
    return probe.worst_s
