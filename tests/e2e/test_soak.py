"""A mixed load for minutes: nothing is lost or wrong, and nothing grows.

`SOAK_S` sets its seconds; `make prove` runs ten minutes. Its table is on the terminal with
`make prove ARGS="tests/e2e/test_soak.py -s"`.
"""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.e2e.rotation import OPERATOR, KeyFile
from tests.e2e.served import Served
from tests.e2e.soak import Soak

SOAK_S = float(os.environ.get("SOAK_S", "600"))
ROTATE_S = min(60.0, SOAK_S / 4)
"""Seconds between two rotations of the keys."""

pytestmark = [pytest.mark.engine, pytest.mark.prove, pytest.mark.timeout(2 * SOAK_S + 300)]

CONNECTIONS = 100
SWITCHES = "specgate_spec_method_switches_total"
GROWTH = 1.03
"""By how much the memory may grow."""


@pytest.fixture
def key_file(tmp_path: Path) -> KeyFile:
    key_file = KeyFile(tmp_path / "keys")
    key_file.write(key_file.keys)
    return key_file


@pytest.fixture
def served(tmp_path: Path, key_file: KeyFile) -> Iterator[Served]:
    engine = json.dumps({"fake_step_ms": 5})
    flags = ("--max-connections", str(CONNECTIONS), "--max-unsent-bytes", "128KiB")
    served = Served.start_beside(
        tmp_path / "server.log",
        *("--engine", "fake", "--engine-args", engine, "--no-access-log"),
        *("--write-timeout-s", "5", "--key-file", str(key_file.path), *flags),
    ).with_key(OPERATOR)
    try:
        yield served
        assert served.process.poll() is None, served.tail()
        assert served.stop() == 0, served.tail()
        assert "Traceback" not in served.log.read_text(errors="replace"), served.tail()
    finally:
        served.kill()


@dataclass(frozen=True)
class Size:
    """What an idle server holds, and how often its method was switched.

    Attributes:
        rss: resident memory in bytes.
        tasks: of its event loop, with those of the scrape that counts them.
    """

    rss: int
    descriptors: int
    threads: int
    tasks: int
    switches: int

    @classmethod
    def of(cls, served: Served) -> "Size":
        """Waits until nothing runs."""
        served.wait_until_idle(60)
        deadline = time.monotonic() + 30
        while served.scrape()("specgate_connections") > 1:
            assert time.monotonic() < deadline, "connections stay open"
            time.sleep(0.2)
        process = psutil.Process(served.process.pid)
        return cls(
            process.memory_info().rss,
            process.num_fds(),
            process.num_threads(),
            min(int(served.scrape()("specgate_event_loop_tasks")) for _ in range(10)),
            served.get("/v1/spec_method").json()["generation"],
        )


def table(soak: Soak, seconds: float, before: Size, after: Size) -> str:
    """What happened, and the sizes, as Markdown."""
    mib = 1 << 20
    growth = 100 * (after.rss / before.rss - 1)
    rows = [
        f"| in {seconds:.0f} s | count |",
        "|---|---|",
        *(f"| {kind} | {count:,} |" for kind, count in soak.done.items()),
        "",
        "| the server, idle | before | after |",
        "|---|---|---|",
        f"| RSS | {before.rss / mib:.1f} MiB | {after.rss / mib:.1f} MiB ({growth:+.2f} %) |",
        f"| file descriptors | {before.descriptors} | {after.descriptors} |",
        f"| threads | {before.threads} | {after.threads} |",
        f"| tasks | {before.tasks} | {after.tasks} |",
        f"| switches | {before.switches:,} | {after.switches:,} |",
    ]
    return "\n".join(rows)


async def test_a_mixed_load_loses_nothing_and_nothing_grows(
    served: Served, key_file: KeyFile
) -> None:
    soak = Soak(served, key_file, ROTATE_S)
    await soak.learn()
    # Caches and pools fill in the first tenth.
    await soak.run(max(SOAK_S / 10, 10))
    kinds = set(soak.done)
    before = await asyncio.to_thread(Size.of, served)
    soak.done.clear()
    begun = time.monotonic()
    await soak.run(SOAK_S)
    seconds = time.monotonic() - begun
    after = await asyncio.to_thread(Size.of, served)
    print(f"\n{table(soak, seconds, before, after)}")
    assert set(soak.done) == kinds
    assert len(kinds) == 7
    assert after.switches - before.switches == soak.done["switches"]
    assert soak.done["rotations of all keys"] >= int(SOAK_S / (ROTATE_S + 30))
    assert after.rss <= before.rss * GROWTH
    assert after.descriptors <= before.descriptors
    assert after.threads <= before.threads
    assert after.tasks <= before.tasks
    scrape = served.scrape()
    outcomes = {name: count for name, count in scrape.by("outcome", SWITCHES).items() if count}
    assert outcomes == {"switched": after.switches}
    assert scrape("specgate_connections_closed_total", reason="refused") == 0
    assert scrape("specgate_http_requests_total", status="500") == 0
