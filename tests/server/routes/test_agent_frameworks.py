"""LangChain, pydantic-ai and instructor, each from its own package, over tools and formats.

The fake engine answers with instances of the schemas, and with scripted calls where the model
chooses.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client_tools import python_tool, run
from tests.server.threaded import ThreadedServer

pytestmark = pytest.mark.prove

LIMIT_S = 120
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Bonn"}}</tool_call>'
ANSWERS = {
    "<tool_response>": "<think>I see.</think>It rains.",
    "How is the weather": CALL,
    "Think first": "<think>Hm.</think>Yes.",
}
"""A part of a prompt -> the answer; the first part that the prompt has decides."""

LANGCHAIN = """
import sys
from typing import Literal
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

class City(BaseModel):
    "A city."
    name: str
    size: Literal["small", "large"]

@tool
def get_weather(city: str) -> str:
    "The weather of a city."
    return "rain in " + city

model = ChatOpenAI(base_url=sys.argv[1], api_key="none", model="specgate-demo", max_retries=0)
for method in ("function_calling", "json_schema"):
    asked = model.with_structured_output(City, method=method)
    assert isinstance(asked.invoke("Name a city as JSON."), City), method
turn = create_agent(model, [get_weather]).invoke(
    {"messages": [{"role": "user", "content": "How is the weather?"}]}
)
kinds = [type(message).__name__ for message in turn["messages"]]
assert kinds == ["HumanMessage", "AIMessage", "ToolMessage", "AIMessage"], kinds
assert turn["messages"][2].content == "rain in Bonn"
assert turn["messages"][3].content == "It rains."
forced = model.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False, seed=3)
whole, streamed = forced.invoke("Hello."), None
for chunk in forced.stream("Hello."):
    streamed = chunk if streamed is None else streamed + chunk
assert [call["name"] for call in whole.tool_calls] == ["get_weather"]
assert [c["args"] for c in streamed.tool_calls] == [c["args"] for c in whole.tool_calls]
print("langchain is served")
"""

PYDANTIC_AI = """
import asyncio, sys
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

class City(BaseModel):
    name: str
    people: int

provider = OpenAIProvider(base_url=sys.argv[1], api_key="none")
model = OpenAIChatModel("specgate-demo", provider=provider)
named = Agent(model, output_type=City)
assert isinstance(named.run_sync("Name a city.").output, City)

async def streamed():
    async with named.run_stream("Name a city.") as stream:
        return await stream.get_output()

assert isinstance(asyncio.run(streamed()), City)
helper = Agent(model)

@helper.tool_plain
def get_weather(city: str) -> str:
    "The weather of a city."
    return "rain in " + city

turn = helper.run_sync("How is the weather?")
assert turn.output == "It rains.", turn.output
parts = [type(part).__name__ for message in turn.all_messages() for part in message.parts]
assert parts == ["UserPromptPart", "ToolCallPart", "ToolReturnPart", "ThinkingPart", "TextPart"]
thought = Agent(model).run_sync("Think first.")
assert [p.content for p in thought.all_messages()[-1].parts] == ["Hm.", "Yes."]
print("pydantic-ai is served")
"""

INSTRUCTOR = """
import sys
import instructor
from openai import OpenAI
from pydantic import BaseModel

class User(BaseModel):
    "A user."
    name: str
    age: int

client = OpenAI(base_url=sys.argv[1], api_key="none")
asked = {
    "model": "specgate-demo",
    "response_model": User,
    "messages": [{"role": "user", "content": "Jason is 25 years old."}],
    "max_retries": 0,
}
for mode in (None, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    patched = instructor.from_openai(client, **({} if mode is None else {"mode": mode}))
    assert isinstance(patched.chat.completions.create(**asked), User), mode
*_, last = instructor.from_openai(client).chat.completions.create_partial(**asked)
assert isinstance(last.age, int) and last.name is not None
print("instructor is served")
"""

CLIENTS = {
    "langchain": ("langchain[openai]==1.4.7", LANGCHAIN),
    "pydantic-ai": ("pydantic-ai-slim[openai]==2.38.0", PYDANTIC_AI),
    "instructor": ("instructor==1.17.0", INSTRUCTOR),
}
"""Client -> its package, and a program that fails if the client does not get what it asks for."""


@pytest.fixture(scope="module")
def served() -> Iterator[ThreadedServer]:
    settings: dict[str, Any] = {
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
        "reasoning_parser": "deepseek_r1",
        "engine_args": {"fake_step_ms": 0, "fake_answers": ANSWERS},
    }
    served = ThreadedServer(**settings).start()
    yield served
    served.stop()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_framework_gets_calls_and_formats(
    served: ThreadedServer, pytestconfig: pytest.Config, tmp_path: Path, client: str
) -> None:
    requirement, program = CLIENTS[client]
    python = python_tool(pytestconfig, requirement, "python")
    done = run([python, "-c", program, f"{served.url}/v1"], LIMIT_S, tmp_path)
    assert done.returncode == 0
    assert done.stdout.endswith(f"{client} is served\n")
