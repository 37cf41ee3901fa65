"""CompatCanary, a scanner of OpenAI-compatible servers, against the demo."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.client_tools import node_tool, run
from tests.e2e.served import MODEL, Served

pytestmark = [pytest.mark.engine, pytest.mark.prove]

SCAN_S = 600
ANSWER_S = 120
"""Its chats set no limit of tokens, so the demo may write to the end of its context."""


@pytest.mark.parametrize("profile", ["chat", "modern"])
def test_every_probe_passes(
    served: Served, profile: str, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    command = node_tool(pytestconfig, "compatcanary@0.2.2", "compatcanary")
    report = tmp_path / "report.json"
    target = ["--base-url", f"{served.url}/v1", "--model", MODEL, "--profile", profile]
    written = ["--format", "json", "--output", str(report), "--fail-on", "never"]
    run([command, "scan", *target, *written, "--timeout", ANSWER_S], SCAN_S, tmp_path)
    found: dict[str, Any] = json.loads(report.read_text("utf-8"))
    results = {one["id"]: one for one in found["results"]}
    assert set(results) >= {"chat.basic", "chat.streaming", "chat.structured_output"}
    failed = {name: one["summary"] for name, one in results.items() if one["status"] != "pass"}
    assert failed == {}
    assert found["score"] == 100
