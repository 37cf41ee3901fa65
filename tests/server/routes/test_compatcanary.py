"""CompatCanary, a scanner of OpenAI-compatible servers, against the fake engine."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client_tools import node_tool, run
from tests.server.gateway import MODEL
from tests.server.threaded import ThreadedServer

pytestmark = pytest.mark.prove

SCAN_S = 120

MISSING = {
    "chat.tool_call": "tools",
    "responses.basic": "/v1/responses",
    "responses.streaming": "/v1/responses",
}
"""Probes of what this server does not have yet. Remove an entry when it has."""


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedServer]:
    running = ThreadedServer().start()
    yield running
    running.stop()


@pytest.mark.parametrize("profile", ["chat", "modern"])
def test_every_probe_passes_but_those_of_what_is_missing(
    server: ThreadedServer, profile: str, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    command = node_tool(pytestconfig, "compatcanary@0.2.2", "compatcanary")
    report = tmp_path / "report.json"
    target = ["--base-url", f"{server.url}/v1", "--model", MODEL, "--profile", profile]
    written = ["--format", "json", "--output", str(report), "--fail-on", "never"]
    run([command, "scan", *target, *written], SCAN_S)
    found: dict[str, Any] = json.loads(report.read_text("utf-8"))
    print(f"score of {profile}: {found['score']}")
    failed = {one["id"]: one["summary"] for one in found["results"] if one["status"] != "pass"}
    assert {one["id"] for one in found["results"]} >= {"chat.basic", "chat.streaming"}
    assert set(failed) == {one["id"] for one in found["results"]} & set(MISSING), failed
