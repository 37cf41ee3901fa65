"""A test that starts an engine or a server without the marker is found."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests import markers
from tests.e2e import served

BARE = SimpleNamespace(pytest=pytest)
STARTING = SimpleNamespace(Served=served.Served)


def item(path: str, fixtures: tuple[str, ...], module: Any, *marks: str) -> Any:
    """What a collected test shows of itself."""
    return SimpleNamespace(
        nodeid=f"{path}::test_x",
        fixturenames=list(fixtures),
        module=module,
        get_closest_marker=lambda name: name if name in marks else None,
    )


@pytest.mark.parametrize(
    ("path", "fixtures", "module"),
    [
        ("tests/server/test_a.py", ("request", "served"), BARE),
        ("tests/engine_adapter/test_a.py", ("live",), BARE),
        ("tests/demo/test_a.py", (), STARTING),
        ("tests/e2e/test_a.py", (), BARE),
    ],
    ids=["server fixture", "engine fixture", "imported starter", "e2e"],
)
def test_a_test_that_starts_an_engine_is_marked(
    path: str, fixtures: tuple[str, ...], module: Any
) -> None:
    assert markers.unmarked([item(path, fixtures, module)]) == [f"{path}::test_x"]
    assert markers.unmarked([item(path, fixtures, module, "needs_vllm")]) != []
    assert markers.unmarked([item(path, fixtures, module, "engine")]) == []


def test_a_test_without_an_engine_needs_no_marker() -> None:
    assert markers.unmarked([item("tests/demo/test_a.py", ("tmp_path",), BARE)]) == []


def test_engines_and_servers_run_in_processes_of_their_own() -> None:
    path = "tests/engine_adapter/vllm_engine/test_a.py"
    assert markers.group(item(path, ("live",), BARE, "engine")) == "engines"
    assert markers.group(item(path, ("stock",), BARE, "engine")) == path
    assert markers.group(item("tests/e2e/test_a.py", (), BARE, "engine")) == "servers"
    assert markers.group(item("tests/demo/test_a.py", (), BARE, "needs_vllm")) is None
    assert markers.group(item("tests/demo/test_a.py", (), BARE)) is None
