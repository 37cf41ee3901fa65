"""SIGTERM under load on the real engine, many times: whole answers, or honest errors."""

import asyncio
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.faulted_load import Faults, Load, greedy_texts
from tests.e2e.greedy import Plain
from tests.e2e.served import START_S, STOP_S, Served

STOPS = int(os.environ.get("STOPS", "20"))
ONE_S = START_S + 120
"""The longest that one start, its load and its stop may take."""

pytestmark = [pytest.mark.engine, pytest.mark.prove, pytest.mark.timeout(STOPS * ONE_S + 120)]

METHODS = ("draft", "suffix", "none", "draft-small", "ngram")
PATIENCE_S = (20, 1)
"""`--shutdown-timeout-s`: all requests end in time, or those that run get the error."""


async def stop_under_load(served: Served, texts: list[Plain], whole: int) -> tuple[Load, float]:
    """Stops a server after so many answers. Returns its load, and the stop's seconds."""
    processes = psutil.Process(served.process.pid).children(recursive=True)
    load = Load(texts, "stopping", "The server is stopping.")
    async with load.running(served):
        await load.until(lambda: load.whole >= whole, 120, "responses come")
        load.closed_at = begun = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(served.process.wait, STOP_S) == 0, served.tail()
        seconds = time.monotonic() - begun
    gone, left = psutil.wait_procs(processes, timeout=60)
    assert not left
    assert gone
    assert "Traceback" not in served.log.read_text(errors="replace"), served.tail()
    return load, seconds


async def test_many_stops_under_load_lose_no_request(tmp_path: Path) -> None:
    """`STOPS` sets their number; with `-s` their table is on the terminal."""
    texts: list[Plain] = []
    stops = Faults()
    for i in range(STOPS):
        method, patience_s = METHODS[i % len(METHODS)], PATIENCE_S[i % len(PATIENCE_S)]
        flags = ("--no-access-log", "--shutdown-timeout-s", str(patience_s))
        served = await asyncio.to_thread(Served.start_beside, tmp_path / f"{i}.log", *flags)
        try:
            texts = texts or await greedy_texts(served)
            await asyncio.to_thread(served.switch, method)
            load, seconds = await stop_under_load(served, texts, whole=i + 1)
        finally:
            served.process.kill()
            served.process.wait()
        assert load.cut_off + load.refused > 0 or patience_s > 1, "no request ran at SIGTERM"
        stops.add(f"SIGTERM, {patience_s} s", method, load, seconds)
    print(f"\n{stops.table()}")
