"""OpenAI's Agents SDK, whose default model speaks `/v1/responses`, in an environment of its own."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client_tools import python_tool, run
from tests.server.clients.packages import PACKAGES
from tests.server.gateway import MODEL
from tests.server.threaded import ThreadedServer

pytestmark = pytest.mark.prove

LIMIT_S = 120


def call_text(name: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': {}})}\n</tool_call>"


ANSWERS = {
    "It is 12:00.": "The time is twelve.",
    '{"assistant"': "Bonjour.",
    "What time": call_text("now"),
    "Speak French": call_text("transfer_to_french"),
}
"""A part of a prompt -> its answer. The prompt of a later turn has the parts of earlier ones."""

SCRIPT = """
import asyncio, json, sys
from agents import Agent, ModelSettings, Runner, function_tool
from agents import set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI
from pydantic import BaseModel

url, model = sys.argv[1:]
set_tracing_disabled(True)
set_default_openai_client(AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0))

@function_tool
def now() -> str:
    "The time."
    return "It is 12:00."

class Verdict(BaseModel):
    ok: bool

async def main():
    told = {}
    french = Agent(name="french", instructions="Speak French.", model=model)
    agent = Agent(name="a", instructions="Help.", tools=[now], handoffs=[french], model=model)
    result = await Runner.run(agent, "What time is it?")
    told["tool"] = [result.final_output, [type(item).__name__ for item in result.new_items]]
    streamed = Runner.run_streamed(agent, "What time is it?")
    raw = [e.data.type async for e in streamed.stream_events() if e.type == "raw_response_event"]
    told["streamed"] = [streamed.final_output, raw]
    result = await Runner.run(agent, "Speak French, please.")
    told["handoff"] = [result.final_output, result.last_agent.name]
    typed = Agent(name="t", instructions="Judge.", output_type=Verdict, model=model)
    told["typed"] = type((await Runner.run(typed, "Is it so?")).final_output.ok).__name__
    settings = ModelSettings(tool_choice="required", temperature=0, max_tokens=64, store=False)
    forced = Agent(name="f", instructions="Go.", tools=[now], model=model, model_settings=settings)
    told["forced"] = (await Runner.run(forced, "Go.")).final_output
    first = await Runner.run(french, "One.")
    second = await Runner.run(french, "Two.", previous_response_id=first.last_response_id)
    told["continued"] = second.last_response_id
    print(json.dumps(told))

asyncio.run(main())
"""


@pytest.fixture
def server() -> Iterator[ThreadedServer]:
    running = ThreadedServer(
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
        engine_args={"fake_answers": ANSWERS, "fake_step_ms": 1},
    ).start()
    yield running
    running.stop()


def test_agents_call_tools_hand_over_and_continue(
    server: ThreadedServer, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    python = python_tool(pytestconfig, PACKAGES["openai-agents"], "python")
    script = tmp_path / "agents_script.py"
    script.write_text(SCRIPT)
    done = run([python, script, server.url, MODEL], LIMIT_S, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    items = ["ToolCallItem", "ToolCallOutputItem", "MessageOutputItem"]
    assert told["tool"] == ["The time is twelve.", items]
    answer, kinds = told["streamed"]
    assert answer == "The time is twelve."
    assert kinds.count("response.completed") == 2
    assert "response.function_call_arguments.done" in kinds
    assert told["handoff"] == ["Bonjour.", "french"]
    assert told["typed"] == "bool"
    assert told["forced"] == "The time is twelve."
    assert told["continued"].startswith("resp_")
