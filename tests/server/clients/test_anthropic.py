"""Anthropic's own clients, Python and TypeScript, as their documentation uses them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client_tools import node_tool, python_tool, run
from tests.server.clients.packages import LIMIT_S
from tests.server.clients.test_clients import call
from tests.server.threaded import ThreadedServer

pytestmark = pytest.mark.prove

PYTHON, NODE = "anthropic==2.14.0", "@anthropic-ai/sdk@1.14.0"
PROGRAMS = Path(__file__).parent / "programs"
ANSWERS = {
    "<tool_response>": "<think>I see.</think>It rains.",
    "How is the weather": call("get_weather", city="Bonn"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedServer]:
    """A server whose model calls tools and reasons."""
    running = ThreadedServer(
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
        reasoning_parser="deepseek_r1",
        engine_args={"fake_answers": ANSWERS},
    ).start()
    yield running
    running.stop()


def last_line(done: Any) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr[-4000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def test_the_python_client(
    server: ThreadedServer, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    python = python_tool(pytestconfig, PYTHON, "python")
    seen = last_line(run([python, PROGRAMS / "anthropic_python.py", server.url], LIMIT_S, tmp_path))
    assert seen["loop"] == {"cities": ["Bonn"], "kinds": ["thinking", "text"], "stop": "end_turn"}
    assert (seen["stream"]["input"], seen["stream"]["stop"]) == ({"city": "Bonn"}, "tool_use")
    assert {"message_start", "content_block_start", "message_stop"} <= set(seen["stream"]["kinds"])
    assert seen["async"] == "text"
    assert seen["counted"] == seen["read"]
    assert (seen["proposer"], seen["drafted"] > 0) == ("ngram", True)
    kind, request_id = seen["error"].split()
    assert (kind, len(request_id)) == ("BadRequestError", 32)


def test_the_typescript_client(
    server: ThreadedServer, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    folder = node_tool(pytestconfig, NODE, "anthropic-ai-sdk").parents[2]
    program = PROGRAMS / "anthropic_node.mjs"
    seen = last_line(run(["node", program, folder, server.url], LIMIT_S, tmp_path))
    assert seen == {"cities": ["Bonn"], "kinds": ["thinking", "text"], "same": True}
