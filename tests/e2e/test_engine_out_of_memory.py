"""The engine's process runs out of memory under load: clients get an error, it is replaced."""

from collections.abc import Iterator

import psutil
import pytest

from tests.e2e.engine_faults import DIED, FLAGS, METHODS, Fault, fault_under_load, limit_s
from tests.e2e.faulted_load import Faults, greedy_texts
from tests.e2e.served import Served

pytestmark = [
    pytest.mark.engine,
    pytest.mark.prove,
    pytest.mark.timeout(limit_s(len(METHODS))),
]

ROOMS_MIB = (0, 8, 32)
"""How much more memory the engine gets, at one fault after another."""

CAUSES = (
    "failed with an error, whose traceback is in the log",
    "was killed by signal 6 (SIGABRT)",
    "was killed by signal 11 (SIGSEGV)",
    "ended with exit status 127",
    "did not answer for",
)
"""Python, PyTorch and oneDNN raise, other C++ aborts, C may not look at what it got, and the
dynamic loader ends with 127. A thread that ends leaves the others waiting.
"""

SIGNS = ("MemoryError", "could not create a primitive", "allocate memory", "bad_alloc", "(SIGABRT)")
"""What the log has of memory: the ends above can have other reasons too."""


def out_of_memory(room_mib: int) -> Fault:
    """The engine's process gets only so much more address space; then its allocations fail."""

    def strike(engine: psutil.Process) -> None:
        _, hard = engine.rlimit(psutil.RLIMIT_AS)
        engine.rlimit(psutil.RLIMIT_AS, (engine.memory_info().vms + (room_mib << 20), hard))

    return Fault(f"no memory after {room_mib} MiB", strike, CAUSES, SIGNS)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose engine runs out of memory."""
    served = Served.start_beside(tmp_path_factory.mktemp("memory") / "server.log", *FLAGS)
    try:
        yield served
        assert served.stop() == 0, served.tail()
    finally:
        served.process.kill()


async def test_an_engine_without_memory_is_replaced_and_no_answer_is_wrong(served: Served) -> None:
    """With `-s` a table of the faults is on the terminal."""
    texts = await greedy_texts(served)
    faults = Faults()
    for i, method in enumerate(METHODS):
        fault = out_of_memory(ROOMS_MIB[i % len(ROOMS_MIB)])
        load, seconds = await fault_under_load(served, texts, method, fault)
        faults.add(fault.name, method, load, seconds)
    print(f"\n{faults.table()}")
    assert len(served.logged(DIED)) == len(METHODS)
    after = await greedy_texts(served)
    assert all(known.allows(new.text) for known, new in zip(texts, after, strict=True))
