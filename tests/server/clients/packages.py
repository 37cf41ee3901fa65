"""Clients of the OpenAI API that the tests run from their own packages, and their versions."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.client_tools import python_tool, run

PACKAGES = {
    "langchain": "langchain==1.5.2 langchain-openai==1.7.4 openai==3.57.0",
    "pydantic-ai": "pydantic-ai-slim[openai]==2.68.0 openai==3.57.0",
    "instructor": "instructor==1.17.0 openai==3.3.0",
    "openai-agents": "openai-agents==0.24.0 openai==3.57.0",
    "haystack": "haystack-ai==3.4.1 openai==3.57.0",
}
"""Client -> what is installed for it. Each client gets an environment of its own."""

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 280


def tell(config: pytest.Config, folder: Path, client: str, url: str, part: str) -> dict[str, Any]:
    """What a client's program prints: its last line, as JSON. The program must succeed.

    Args:
        folder: where it runs.
        url: the server's address, without `/v1`.
        part: `forced` asks for what every model can be held to: required or named calls, and
            formats with a schema. `json_mode` asks for any JSON object. In `chosen` the model
            chooses its calls, which needs the parsers; in `beside` it also answers in a format.
            `figures` has the drafted and the accepted tokens, whole and streamed.
    """
    python = python_tool(config, PACKAGES[client], "python")
    program = PROGRAMS / f"{client.replace('-', '_')}_program.py"
    done = run([python, program, f"{url}/v1", part], LIMIT_S, folder)
    assert done.returncode == 0, done.stderr[-4000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def check_forced(client: str, told: dict[str, Any]) -> None:
    """Every object that a client got is of the type that it asked for."""
    if client == "langchain":
        for one in told.values():
            assert one["function_calling"] == one["json_schema"] == ["City"] * 4
            whole, streamed = one["calls"]
            assert whole == streamed
            assert len(whole) == 1
        assert set(told) == {"chat", "responses"}
    elif client == "pydantic-ai":
        want = {"default": ["City"] * 2, "nested": ["Trip"] * 2, "native": ["Trip"] * 2}
        assert told == {"OpenAIChatModel": want, "OpenAIResponsesModel": want}
    elif client == "instructor":
        assert set(told) >= {"default", "partial", "async", "TOOLS_STRICT", "RESPONSES_TOOLS"}
        assert set(told.values()) == {True}
    elif client == "haystack":
        answers = {"typed": "City", "calls": [["get_weather", ["city"]]]}
        assert told == {"chat": answers, "responses": answers}
    else:
        assert told == {name: {"typed": ["Verdict", True]} for name in ("default", "chat")}
