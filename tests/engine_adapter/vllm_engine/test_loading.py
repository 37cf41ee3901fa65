"""Loading and unloading proposers in a real engine while it generates."""

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from engine_adapter.seam.errors import EngineConfigError, ProposerRefused
from engine_adapter.seam.types import GenerationRequest, SpecDecodeParams
from tests.engine_adapter.proposers import heads
from tests.engine_adapter.vllm_engine.conftest import start
from tests.engine_adapter.vllm_engine.support.live import (
    Live,
    Prompt,
    Stock,
    generate,
    greedy,
    pinned,
)

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

MIB = 1 << 20
HEAD_MIB = 64
GROWTH_MIB = 16
"""How much the memory may grow in some cycles: less than the heads of one."""

STALL_S = 0.1
"""The longest pause that loading may add to a stream, in seconds."""

_ids = itertools.count()


@pytest.fixture(scope="module")
def medusa(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Medusa checkpoint of 64 MiB for the demo target: 4 heads of 56 layers."""
    made = heads.medusa(hidden=256, vocabulary=2048, num_heads=4, num_layers=56)
    size = sum(tensor.nbytes for tensor in made.tensors.values())
    assert size == HEAD_MIB * MIB
    return made.write(tmp_path_factory.mktemp("medusa"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine() -> AsyncIterator[Live]:
    """A separate engine, so that its memory can be measured."""
    started = await start([{"name": "ngram"}], kv_cache_memory_bytes=128 * MIB, max_num_seqs=8)
    yield started
    await started.engine.stop()


@dataclass
class Load:
    """Streams that never end, and the pauses between their deltas."""

    live: Live
    pauses: list[float] = field(default_factory=list)

    async def stream(self, prompt: Prompt, spec: SpecDecodeParams) -> None:
        loop = asyncio.get_running_loop()
        while True:
            request = GenerationRequest(f"load-{next(_ids)}", prompt, greedy(200), spec)
            last = None
            async for _ in self.live.engine.generate(request):
                now = loop.time()
                if last is not None:
                    self.pauses.append(now - last)
                last = now

    def longest(self) -> float:
        """The longest pause since the last call."""
        pauses, self.pauses = self.pauses, []
        return max(pauses, default=0.0)


@asynccontextmanager
async def under_load(live: Live, prompts: Sequence[Prompt]) -> AsyncIterator[Load]:
    """Runs four streams during the block, two with drafts and two without."""
    load = Load(live)
    specs = [pinned("ngram", 5), pinned("none", 0)] * 2
    tasks = [asyncio.create_task(load.stream(p, s)) for p, s in zip(prompts, specs, strict=False)]
    try:
        yield load
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def resident_mib(live: Live) -> float:
    """The resident memory of the engine's processes."""
    resident: int = sum(process.memory_info().rss for process in live.processes if alive(process))
    return resident / MIB


def alive(process: psutil.Process) -> bool:
    """Whether its memory can be read."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@contextmanager
def address_space(live: Live, more: int) -> Iterator[None]:
    """A scope in which each of the engine's processes can take only so many bytes more."""
    before = {p: p.rlimit(psutil.RLIMIT_AS) for p in live.processes if alive(p)}
    try:
        for process, (_, hard) in before.items():
            process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms + more, hard))
        yield
    finally:
        for process, limits in before.items():
            process.rlimit(psutil.RLIMIT_AS, limits)


async def cycle(live: Live, model: str, prompt: Prompt) -> None:
    """Loads the heads, drafts with them, and unloads them."""
    await live.engine.load_proposer({"name": "heads", "method": "medusa", "model": model})
    result = await generate(live, prompt, greedy(8), pinned("heads", 3))
    assert result.counts("heads").drafted > 0
    await live.engine.unload_proposer("heads")


async def churn(
    live: Live, model: str, prompts: Sequence[Prompt], cycles: int, settled: int
) -> tuple[float, float, float]:
    """Loads and unloads the heads under load.

    Returns:
        Growth of resident memory in MiB after `settled` cycles, the longest pause of a stream in
        half of the cycles in seconds, and that of a control run of the same streams without
        loading. A stall by loading is in every cycle, one of a busy machine is not.
    """
    async with under_load(live, prompts) as load:
        await asyncio.sleep(2)
        load.longest()
        memory, pauses = [], []
        for _ in range(cycles):
            await cycle(live, model, prompts[4])
            await asyncio.sleep(0.2)  # the C library returns memory a moment later
            memory.append(resident_mib(live))
            pauses.append(load.longest())
        paused = statistics.median(pauses)
        await asyncio.sleep(10)
        control = load.longest()
        deadline = time.monotonic() + 60
        while memory[-1] - memory[settled - 1] > GROWTH_MIB and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            memory[-1] = resident_mib(live)
    print([round(m) for m in memory], f"paused {paused:.3f} s, without loading {control:.3f} s")
    return memory[-1] - memory[settled - 1], paused, control


async def test_memory_is_freed_and_no_stream_stalls(
    engine: Live, medusa: str, prompts: list[Prompt]
) -> None:
    growth, paused, control = await churn(engine, medusa, prompts, cycles=8, settled=4)
    assert growth <= GROWTH_MIB
    assert paused <= STALL_S + control


@pytest.mark.prove
async def test_memory_is_freed_fifty_times(
    engine: Live, medusa: str, prompts: list[Prompt]
) -> None:
    growth, paused, control = await churn(engine, medusa, prompts, cycles=50, settled=10)
    assert growth <= GROWTH_MIB
    assert paused <= max(STALL_S, control)


async def test_loaded_heads_show_their_memory_and_change_no_output(
    engine: Live, medusa: str, stock: Stock, prompts: list[Prompt]
) -> None:
    names = [info.name for info in await engine.engine.proposers()]
    info = await engine.engine.load_proposer({"name": "heads", "method": "medusa", "model": medusa})
    assert info.weights_bytes == HEAD_MIB * MIB
    assert (info.kv_bytes, info.state, info.num_speculative_tokens) == (0, "loaded", 3)
    result = await generate(engine, prompts[2], greedy(30), pinned("heads", 3))
    await stock.check(prompts[2], result.tokens)
    assert result.counts("heads").drafted > 30
    await engine.engine.unload_proposer("heads")
    assert [info.name for info in await engine.engine.proposers()] == names


async def test_heads_that_do_not_fit_are_refused_and_leave_nothing(
    engine: Live, tmp_path: Path
) -> None:
    narrow = heads.medusa(hidden=128, vocabulary=2048).write(tmp_path)
    before = await engine.engine.proposers()
    with pytest.raises(EngineConfigError, match=r"config\.json: hidden_size must be 256"):
        await engine.engine.load_proposer({"name": "heads", "method": "medusa", "model": narrow})
    assert await engine.engine.proposers() == before


async def test_weights_that_the_worker_refuses_leave_nothing(engine: Live, tmp_path: Path) -> None:
    spoilt = heads.medusa(hidden=256, vocabulary=2048, token_map=64)
    spoilt.tensors["token_map"][0] = 5000
    before = await engine.engine.proposers()
    with pytest.raises(EngineConfigError, match=r"model\.safetensors: token_map"):
        await engine.engine.load_proposer(
            {"name": "heads", "method": "medusa", "model": spoilt.write(tmp_path)}
        )
    assert await engine.engine.proposers() == before
    (tmp_path / "model.safetensors").unlink()
    await engine.engine.load_proposer({"name": "heads", "method": "ngram"})
    await engine.engine.unload_proposer("heads")


async def test_a_cascade_of_loaded_heads_drafts_and_pins_its_members(
    engine: Live, medusa: str, stock: Stock, prompts: list[Prompt]
) -> None:
    await engine.engine.load_proposer({"name": "heads", "method": "medusa", "model": medusa})
    await engine.engine.load_proposer({"name": "cascade", "members": ["ngram", "heads"]})
    with pytest.raises(ProposerRefused) as caught:
        await engine.engine.unload_proposer("heads")
    assert caught.value.code == "proposer_in_use"
    result = await generate(engine, prompts[1], greedy(40), pinned("cascade", 5))
    await stock.check(prompts[1], result.tokens)
    assert result.spec.decode_steps == result.counts("cascade").drafts > 0, (
        "a member drafts in every step"
    )
    await engine.engine.unload_proposer("cascade")
    await engine.engine.unload_proposer("heads")


async def test_heads_for_which_there_is_no_memory_are_refused_before_they_are_read(
    engine: Live, medusa: str, tmp_path: Path, prompts: list[Prompt]
) -> None:
    large = heads.medusa(hidden=256, vocabulary=2048, num_heads=4, num_layers=248)
    # Half as large in the file, which is mapped to read its header.
    large.tensors = {name: tensor.bfloat16() for name, tensor in large.tensors.items()}
    fields = {"name": "large", "method": "medusa", "model": large.write(tmp_path)}
    names = [info.name for info in await engine.engine.proposers()]
    async with under_load(engine, prompts) as load:
        await generate(engine, prompts[2], greedy(30), pinned("ngram", 5))
        resident = resident_mib(engine)
        with address_space(engine, 192 * MIB):
            with pytest.raises(ProposerRefused, match=r"needs 0\.25 GiB of memory") as caught:
                await engine.engine.load_proposer(fields)
            load.longest()
            await generate(engine, prompts[2], greedy(30), pinned("ngram", 5))
            assert load.longest() > 0, "the streams continue"
        assert resident_mib(engine) - resident < 128
    assert caught.value.code == "no_room"
    assert [info.name for info in await engine.engine.proposers()] == names
    await cycle(engine, medusa, prompts[4])
