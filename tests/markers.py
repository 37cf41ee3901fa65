"""Checks the tests' markers, and decides in which process a test runs.

A test marked `engine` starts a vLLM engine or a process of the `specgate` command. A test marked
`needs_vllm` imports vLLM and starts no engine. All others run without either.
"""

import sys
from collections.abc import Iterable
from typing import Any

ENGINE_FIXTURES = frozenset({"live", "cramped", "stock", "served"})
"""Fixtures that start an engine or a server; each fixture built on one of them counts too."""

SHARED_ENGINES = frozenset({"live", "cramped"})
"""Engines that tests of several modules use."""

STARTERS = frozenset({"tests.engine_adapter.vllm_engine.conftest.start", "tests.e2e.served.Served"})
"""What starts an engine or a server. A module that imports one marks all its tests."""

SERVERS = ("tests/e2e/", "tests/server/")
"""Folders of the `engine` tests that start the command. The other ones start engines."""


def unmarked(items: Iterable[Any]) -> list[str]:
    """Tests that start an engine or a server and are not marked `engine`."""
    return [
        item.nodeid for item in items if _starts(item) and not item.get_closest_marker("engine")
    ]


def _starts(item: Any) -> bool:
    if item.nodeid.startswith("tests/server/routes/"):
        return False  # their servers are threads of the test's own process
    if ENGINE_FIXTURES & set(item.fixturenames) or item.nodeid.startswith("tests/e2e/"):
        return True
    names = vars(item.module).values()
    return any(
        f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}" in STARTERS
        for value in names
    )


def group(item: Any) -> str | None:
    """The group of a test: tests of one group run in one process.

    Servers are one group, because README's examples need a fixed port. So are the tests that share
    an engine, and the tests of a module that starts its own engine. Other tests run anywhere. xdist
    starts the groups with most tests first and single tests last, so both processes end together.
    """
    if not item.get_closest_marker("engine"):
        return None
    if item.nodeid.startswith(SERVERS):
        return "servers"
    return "engines" if SHARED_ENGINES & set(item.fixturenames) else item.nodeid.split("::")[0]


def vllm_is_imported() -> bool:
    """Whether this process has imported vLLM."""
    return "vllm" in sys.modules
