"""SIGTERM under load on the real engine, many times: whole answers, or honest errors."""

import asyncio
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.faulted_load import Faults, Load, connecting, greedy_texts
from tests.e2e.greedy import Plain, plain
from tests.e2e.served import START_S, STOP_S, Served
from tests.e2e.traffic import chat

STOPS = int(os.environ.get("STOPS", "20"))
ONE_S = START_S + 120
"""The longest that one start, its load and its stop may take."""

pytestmark = [pytest.mark.engine, pytest.mark.prove, pytest.mark.timeout(STOPS * ONE_S + 120)]

METHODS = ("draft", "suffix", "none", "draft-small", "ngram")
SHORT_S = 1
PATIENCE_S = (20, SHORT_S)
"""`--shutdown-timeout-s`: all requests end in time, or those that run get the error."""

LONG = chat(0, max_tokens=1500, spec_decode={"proposer": "none"})
"""A stream of 1500 steps, one for each token: it cannot end within `SHORT_S`."""


async def long_text(served: Served) -> Plain:
    """The text of the long stream."""
    async with connecting(served.url) as client:
        return await plain(client, LONG)


async def stop_under_load(
    served: Served, texts: list[Plain], whole: int, long: Plain | None
) -> tuple[Load, float]:
    """Stops a server after so many answers, and beside a long stream that has begun.

    Args:
        long: the text of that stream, if there is one.

    Returns the server's load, and the stop's seconds.
    """
    processes = psutil.Process(served.process.pid).children(recursive=True)
    load = Load(texts, "stopping", "The server is stopping.")
    async with (
        load.running(served),
        connecting(served.url) as client,
        asyncio.TaskGroup() as group,
    ):
        await load.until(lambda: load.whole >= whole, 120, "responses come")
        if long is not None:
            writes = asyncio.Event()
            group.create_task(load.follow(client, LONG, long, writes))
            await writes.wait()
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
    long: Plain | None = None
    stops = Faults()
    for i in range(STOPS):
        method, patience_s = METHODS[i % len(METHODS)], PATIENCE_S[i % len(PATIENCE_S)]
        flags = ("--no-access-log", "--shutdown-timeout-s", str(patience_s))
        served = await asyncio.to_thread(Served.start_beside, tmp_path / f"{i}.log", *flags)
        try:
            texts = texts or await greedy_texts(served)
            long = long or await long_text(served)
            await asyncio.to_thread(served.switch, method)
            is_short = patience_s == SHORT_S
            load, seconds = await stop_under_load(
                served, texts, whole=i + 1, long=long if is_short else None
            )
        finally:
            served.process.kill()
            served.process.wait()
        assert load.cut_off or not is_short, "the long stream ended before the stop"
        stops.add(f"SIGTERM, {patience_s} s", method, load, seconds)
    print(f"\n{stops.table()}")
