"""The room for a proposer that is loaded while steps run, on a pretended device and on the CPU."""

import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from engine_adapter.proposers.methods import get_method, parse_spec
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker import device_memory
from engine_adapter.vllm_engine.worker.device_memory import (
    NoRoom,
    check_room,
    free_bytes,
    release_memory,
    side_stream,
)
from tests.engine_adapter.proposers import heads

GIB = 1 << 30
GPU, CPU = torch.device("meta"), torch.device("cpu")
ROOT = Path(__file__).parents[4]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the device says of its memory, in bytes; it can be changed."""
    seen = SimpleNamespace(free_memory=6 * GIB, torch_memory=50 * GIB, torch_allocated=50 * GIB)
    monkeypatch.setitem(vars(compat), "MemorySnapshot", lambda device: seen)
    return seen


def test_what_is_free_on_the_device_is_compared_with_what_is_needed(
    memory: SimpleNamespace,
) -> None:
    check_room(6 * GIB, GPU, 0)
    with pytest.raises(NoRoom, match=r"needs 6\.50 GiB of the memory of meta, of which 6\.00 GiB"):
        check_room(13 * GIB // 2, GPU, 0)


def test_the_memory_of_a_step_stays_free(memory: SimpleNamespace) -> None:
    assert free_bytes(GPU, 2 * GIB) == 4 * GIB
    # torch holds a part of it already, from the steps before.
    memory.torch_allocated = 49 * GIB
    assert free_bytes(GPU, 2 * GIB) == 5 * GIB
    memory.torch_allocated = 40 * GIB
    assert free_bytes(GPU, 2 * GIB) == 6 * GIB
    with pytest.raises(NoRoom, match=r"of which 0\.00 GiB"):
        check_room(1, GPU, 70 * GIB)
    check_room(0, GPU, 70 * GIB)


def test_on_a_cpu_the_limit_of_the_process_counts() -> None:
    program = """
import resource, psutil, torch
from engine_adapter.vllm_engine.worker.device_memory import NoRoom, check_room, free_bytes
cpu = torch.device("cpu")
check_room(1 << 20, cpu, 0)
used = psutil.Process().memory_info().vms
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28),) * 2)
assert free_bytes(cpu, 0) <= 1 << 28
try:
    check_room(1 << 29, cpu, 0)
except NoRoom:
    try:
        torch.empty(1 << 29, dtype=torch.uint8)
    except RuntimeError:
        print("refused in time")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout == "refused in time\n"


@pytest.mark.parametrize("version", [0, 1])
def test_on_a_cpu_the_limit_of_the_container_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    limit, usage, reclaimable = device_memory._CGROUPS[version]
    there = tmp_path / Path(limit).name
    monkeypatch.setattr(device_memory, "_CGROUPS", ((str(there), usage, reclaimable),))
    system = SimpleNamespace(available=5 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: system)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY,) * 2)
    assert free_bytes(CPU, 0) == 5 * GIB
    there.write_text("max\n")
    assert free_bytes(CPU, 0) == 5 * GIB
    there.write_text("10000\n")
    (tmp_path / usage).write_text("9000\n")
    (tmp_path / "memory.stat").write_text(f"anon 5000\n{reclaimable} 3000\n")
    assert free_bytes(CPU, 0) == 4000


def test_a_heads_weights_and_logits_are_counted(tmp_path: Path) -> None:
    target: Any = SimpleNamespace(
        hidden_size=heads.HIDDEN, vocab_size=heads.VOCABULARY, dtype=torch.float16
    )
    for method, logits in (("medusa", 3), ("mlp_speculator", 1)):
        made = getattr(heads, method)()
        folder = tmp_path / method
        folder.mkdir()
        fields = {"name": "it", "method": method, "model": made.write(folder)}
        spec = parse_spec({**fields, "num_speculative_tokens": 3})
        weights = sum(tensor.numel() for tensor in made.tensors.values())
        found = get_method(method).device_bytes(spec, target, 100)
        assert found == 2 * (weights + logits * 100 * heads.VOCABULARY)
    assert get_method("ngram").device_bytes(parse_spec({"name": "ngram"}), target, 100) == 0


def test_work_of_a_load_is_on_a_stream_of_its_own_and_done_when_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            assert device == GPU

        def __enter__(self) -> None:
            seen.append("begin")

        def __exit__(self, *_: object) -> None:
            seen.append("end")

        def synchronize(self) -> None:
            seen.append("done")

    monkeypatch.setattr(torch, "Stream", Stream)
    with side_stream(GPU):
        seen.append("load")
    assert seen == ["begin", "load", "end", "done"]
    with side_stream(CPU):
        seen.append("load")
    assert len(seen) == 5


def test_memory_is_returned_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[bool] = []
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: emptied.append(True))
    release_memory(GPU)
    assert emptied == [True]
    release_memory(CPU)
    assert emptied == [True]


def test_returning_memory_does_not_block() -> None:
    began = time.perf_counter()
    release_memory(CPU)
    assert time.perf_counter() - began < 5
    for thread in threading.enumerate():
        if thread.name == "malloc-trim":
            thread.join(60)
            assert not thread.is_alive()
