"""Large texts to `/tokenize` at once take little memory, and give it back."""

import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.peak import Peak
from tests.e2e.served import Served

pytestmark = [pytest.mark.engine, pytest.mark.prove, pytest.mark.timeout(600)]

TEXTS = {"one letter": "a" * 1_000_000, "words": "hello world, some words. " * 40_000}
AT_ONCE = 8
MOST_MIB, MOST_KEPT_MIB = 500, 250
"""A server that tokenized all of them at once took 1,150 MiB, and kept 600 to 1,000."""


@pytest.mark.parametrize("name", TEXTS)
def test_large_texts_at_once_take_little_memory(tmp_path: Path, name: str) -> None:
    engine = json.dumps({"fake_step_ms": 1})
    served = Served.start_beside(tmp_path / "log", "--engine", "fake", "--engine-args", engine)
    try:
        with httpx.Client(base_url=served.url, timeout=300) as client:
            small = "hello " * 100

            def ask(text: str) -> float:
                begin = time.monotonic()
                assert client.post("/tokenize", json={"prompt": text}).status_code == 200
                return time.monotonic() - begin

            alone = [ask(small) for _ in range(20)]
            used_s = sum(psutil.Process(served.process.pid).cpu_times()[:2])
            beside = []
            with Peak(served.process.pid) as peak, ThreadPoolExecutor(AT_ONCE) as pool:
                large = [pool.submit(ask, TEXTS[name]) for _ in range(AT_ONCE)]
                while not all(answer.done() for answer in large):
                    beside.append(ask(small))
                    time.sleep(0.02)
                assert all(answer.result() for answer in large)
            used_s = sum(psutil.Process(served.process.pid).cpu_times()[:2]) - used_s
            grown, kept = ((size - peak.before) / 2**20 for size in (peak.most, peak.now()))
            print(
                f"| {name} | {grown:+.0f} | {kept:+.0f} | {used_s:.1f} "
                f"| {statistics.median(alone):.3f} | {statistics.median(beside):.3f} |"
            )
            assert grown < MOST_MIB
            assert kept < MOST_KEPT_MIB
    finally:
        served.stop()
