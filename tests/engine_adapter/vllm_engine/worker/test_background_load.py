"""A proposer that is created in a thread: its states, and its effects on the process."""

import threading
import time
from typing import Any

import pytest
import torch

from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.methods import parse_spec
from engine_adapter.vllm_engine.wire import LoadState
from engine_adapter.vllm_engine.worker.background_load import BackgroundLoad
from engine_adapter.vllm_engine.worker.device_memory import NoRoom

SPEC = parse_spec({"name": "ngram"})


def ended(load: BackgroundLoad) -> tuple[str, str]:
    """The last state of the load."""
    deadline = time.monotonic() + 60
    while load.state[0] == LoadState.READING:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return load.state


def test_the_load_shows_its_state_and_returns_the_proposer() -> None:
    gate, made = threading.Event(), object()

    def create(spec: ProposerSpec) -> Any:
        assert spec is SPEC
        gate.wait(60)
        return made

    load = BackgroundLoad(SPEC, create)
    assert load.state == (LoadState.READING, "")
    gate.set()
    assert ended(load) == (LoadState.READY, "")
    assert load.proposer is made


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ValueError("config.json: hidden_size must be 64"), LoadState.REFUSED),
        (OSError("model.safetensors"), LoadState.REFUSED),
        (NoRoom("needs 3.00 GiB"), LoadState.NO_ROOM),
        (RuntimeError("mistake"), LoadState.FAILED),
        (MemoryError(), LoadState.FAILED),
    ],
)
def test_the_state_gives_the_reason_of_a_failure(error: Exception, state: str) -> None:
    def create(spec: ProposerSpec) -> Any:
        raise error

    found, why = ended(BackgroundLoad(SPEC, create))
    assert found == state
    assert str(error) in why


def test_the_load_uses_one_core_and_later_threads_use_all() -> None:
    threads: list[int] = []

    def count(spec: ProposerSpec | None = None) -> Any:
        torch.zeros(1)
        threads.append(torch.get_num_threads())

    before = torch.get_num_threads()
    ended(BackgroundLoad(SPEC, count))
    later = threading.Thread(target=count)
    later.start()
    later.join()
    assert threads[0] == 1
    assert threads[1] == torch.get_num_threads() == before
