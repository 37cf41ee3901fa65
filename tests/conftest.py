"""What every test process needs before transformers or vLLM is imported, and what markers mean."""

import gc
import os
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest

import server.cli
from tests import markers

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
# Threads that spin at a barrier while the one they wait for has no core make a busy machine slow.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The demo models are so small that a second thread costs more than it brings, also to an engine
# that runs alone: two engine test files took 90 s with two threads and 63 s with one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

MAX_ID = 100
"""Characters of a parameter's text in the id of its test."""

# The engine's process first imports the main module of the process that starts it: as in a server,
# that is the command's.
main_module = sys.modules["__main__"]
main_module.__spec__, main_module.__file__ = None, server.cli.__file__


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    # The million objects of all modules and tests stay: searching them for garbage again and again
    # takes a tenth of the time of a small test.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_make_parametrize_id(val: Any) -> str | None:
    """The beginning of a long text: each report has the id, and there are texts of megabytes."""
    is_long = isinstance(val, str | bytes) and len(val) > MAX_ID
    return f"{val[:MAX_ID]!a}... of {len(val)}" if is_long else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    # A wrapper, because pytest-xdist reads the groups in an implementation that also runs first.
    if unmarked := markers.unmarked(items):
        raise pytest.UsageError("Mark these tests `engine`:\n" + "\n".join(unmarked))
    for item in items:
        if name := markers.group(item):
            item.add_marker(pytest.mark.xdist_group(name))
    yield
    grouped = [item for item in items if item.get_closest_marker("xdist_group")]
    if hasattr(config, "workerinput") and not all("@" in item.nodeid for item in grouped):
        raise pytest.UsageError("pytest-xdist ignored the groups: is its version right for pytest?")


def pytest_collection_finish() -> None:
    if markers.vllm_is_imported():
        raise pytest.UsageError("A test module or conftest imports vLLM: import it in the test")


@pytest.fixture(autouse=True)
def imports_vllm_only_if_marked(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that is the first to import vLLM must say so."""
    marked = any(request.node.get_closest_marker(name) for name in ("engine", "needs_vllm"))
    before = markers.vllm_is_imported()
    yield
    if not marked and not before and markers.vllm_is_imported():
        pytest.fail("this test imports vLLM: mark it `needs_vllm`")
