"""The GPUs and the CPU's cores of each of several engines."""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway.placement import (
    THREADS_BIND,
    cores,
    dealt,
    device_ids,
    on_cores,
)

pytestmark = pytest.mark.needs_vllm


def config(index: int, **arguments: Any) -> EngineConfig:
    return EngineConfig("m", "m", arguments=arguments, data_parallel_index=index)


def cpus(*of: tuple[int, int, int]) -> list[Any]:
    """CPUs of (id, core, memory node)."""
    return [SimpleNamespace(id=i, physical_core=c, numa_node=n) for i, c, n in of]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Four cores with two hardware threads each: 0 and 4 are one core."""
    found = cpus(*((i, i % 4, 0) for i in range(8)))
    resources = SimpleNamespace(
        get_allowed_cpu_list=lambda: found,
        get_visible_memory_node=lambda: [0],
        parse_id_list=compat.cpu_resource_utils.parse_id_list,
    )
    monkeypatch.setattr(compat, "cpu_resource_utils", resources, raising=False)
    monkeypatch.delenv(THREADS_BIND, raising=False)
    return monkeypatch


# -- cores -------------------------------------------------------------------------------------


def test_engines_have_no_core_in_common() -> None:
    hyperthreads = cpus(*((i, i % 4, 0) for i in range(8)))
    assert dealt(hyperthreads, 2) == [{0, 1, 4, 5}, {2, 3, 6, 7}]
    assert dealt(hyperthreads, 4) == [{0, 4}, {1, 5}, {2, 6}, {3, 7}]


def test_an_engine_stays_on_a_memory_node_where_it_can() -> None:
    interleaved = cpus(*((i, i, i % 2) for i in range(8)))
    assert dealt(interleaved, 2) == [{0, 2, 4, 6}, {1, 3, 5, 7}]


def test_cores_that_do_not_divide_are_dealt_almost_evenly() -> None:
    shares = dealt(cpus(*((i, i, 0) for i in range(7))), 3)
    assert [len(share) for share in shares] == [2, 2, 3]
    assert sorted(cpu for share in shares for cpu in share) == list(range(7))


@pytest.mark.usefixtures("machine")
def test_each_engine_gets_its_share() -> None:
    assert cores(config(0, data_parallel_size=2)) == {0, 1, 4, 5}
    assert cores(config(1, data_parallel_size=2)) == {2, 3, 6, 7}


@pytest.mark.usefixtures("machine")
def test_one_engine_is_not_bound() -> None:
    assert cores(config(0)) is None
    assert cores(config(0, data_parallel_size=1)) is None


@pytest.mark.usefixtures("machine")
def test_more_engines_than_cores_are_refused() -> None:
    with pytest.raises(EngineConfigError, match=r"5 engines need as many cores.* use 4") as caught:
        cores(config(0, data_parallel_size=5))
    assert caught.value.setting == "data_parallel_size"


def test_the_user_can_name_the_cpus(machine: pytest.MonkeyPatch) -> None:
    machine.setenv(THREADS_BIND, "0-2|5,7")
    assert cores(config(0, data_parallel_size=2)) == {0, 1, 2}
    assert cores(config(1, data_parallel_size=2)) == {5, 7}
    with pytest.raises(EngineConfigError, match="the CPUs of each of 3 engines"):
        cores(config(0, data_parallel_size=3))


def test_threads_can_be_left_unbound(machine: pytest.MonkeyPatch) -> None:
    machine.setenv(THREADS_BIND, "nobind")
    assert cores(config(1, data_parallel_size=9, tensor_parallel_size=2)) is None


@pytest.mark.usefixtures("machine")
def test_tensor_parallelism_on_a_cpu_is_refused_with_the_remedy() -> None:
    with pytest.raises(EngineConfigError, match=f"set {THREADS_BIND}=nobind"):
        cores(config(0, data_parallel_size=2, tensor_parallel_size=2))


@pytest.mark.parametrize(
    ("arguments", "binding", "fits"),
    [
        ({"tensor_parallel_size": 2}, None, False),
        ({"tensor_parallel_size": 2}, "0-3|4-7", True),
        ({"tensor_parallel_size": 2}, "nobind", True),
        ({"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}, None, True),
        ({"tensor_parallel_size": 1}, None, True),
    ],
)
def test_more_ranks_than_memory_nodes_need_a_binding(
    machine: pytest.MonkeyPatch, arguments: dict[str, Any], binding: str | None, fits: bool
) -> None:
    if binding is not None:
        machine.setenv(THREADS_BIND, binding)
    if fits:
        assert cores(config(0, **arguments)) is None
        return
    with pytest.raises(EngineConfigError, match="each of 2 ranks to a memory") as caught:
        cores(config(0, **arguments))
    assert caught.value.setting == "tensor_parallel_size"


def test_a_process_that_is_started_there_stays_there() -> None:
    before = os.sched_getaffinity(0)
    chosen = {max(before)}
    program = "import os; print(os.sched_getaffinity(0))"
    stays, begun = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        stays.wait(60)

    thread = threading.Thread(target=wait)
    with on_cores(chosen):
        shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        thread.start()
        begun.wait(60)
    try:
        assert shown.stdout.strip() == str(chosen)
        assert os.sched_getaffinity(0) == before
        assert thread.native_id is not None
        assert os.sched_getaffinity(thread.native_id) == before, "only processes stay"
    finally:
        stays.set()
        thread.join()


def test_nothing_is_bound_without_cores() -> None:
    before = os.sched_getaffinity(0)
    with on_cores(None):
        assert os.sched_getaffinity(0) == before


# -- GPUs --------------------------------------------------------------------------------------


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = SimpleNamespace(device_count=lambda: 8)
    monkeypatch.setattr(compat, "current_platform", platform, raising=False)


@pytest.mark.usefixtures("eight_gpus")
def test_each_engine_gets_gpus_of_its_own() -> None:
    arguments = {"data_parallel_size": 3, "tensor_parallel_size": 2}
    assert [device_ids(config(i, **arguments)) for i in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert device_ids(config(1, data_parallel_size=2)) == [1]


@pytest.mark.usefixtures("eight_gpus")
def test_the_user_can_name_the_gpus() -> None:
    arguments = {"data_parallel_size": 2, "tensor_parallel_size": 2, "device_ids": [7, 5, 3, 1]}
    assert [device_ids(config(i, **arguments)) for i in range(2)] == [[7, 5], [3, 1]]


@pytest.mark.usefixtures("eight_gpus")
def test_too_few_gpus_are_refused() -> None:
    with pytest.raises(EngineConfigError, match=r"3 engines need 12 GPUs .* there are 8") as caught:
        device_ids(config(0, data_parallel_size=3, tensor_parallel_size=4))
    assert caught.value.setting == "data_parallel_size"
