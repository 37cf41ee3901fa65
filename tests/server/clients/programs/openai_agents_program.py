"""OpenAI's Agents SDK with its default model, which speaks `/v1/responses`, and with the other."""

import asyncio
import json
import sys
from typing import Any, Literal

import httpx2
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    Runner,
    SQLiteSession,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

MODEL = "specgate-demo"
SETTINGS = ModelSettings(max_tokens=200, temperature=0)


@function_tool
def now() -> str:
    """The time."""
    return "It is 12:00."


@function_tool
def get_report(place: str) -> str:
    """What the sky is like."""
    return "the report says rain"


class Sky(BaseModel):
    """The sky."""

    sky: Literal["rain", "sun"]


class Verdict(BaseModel):
    """A verdict."""

    ok: bool
    grade: Literal["a", "b"]


async def forced(model: Any) -> dict[str, Any]:
    """Typed output, whole and streamed."""
    agent = Agent(
        name="judge",
        instructions="Judge.",
        output_type=Verdict,
        model=model,
        model_settings=SETTINGS,
    )
    whole = (await Runner.run(agent, "Is it so?")).final_output
    streamed = Runner.run_streamed(agent, "Is it so?")
    async for _ in streamed.stream_events():
        pass
    return {"typed": [type(whole).__name__, whole == streamed.final_output]}


async def watched(agent: Any, text: str) -> list[Any]:
    """The answer of a streamed run, who gave it, and the names of the run's events."""
    run = Runner.run_streamed(agent, text)
    events = [event async for event in run.stream_events()]
    names = [event.name for event in events if event.type == "run_item_stream_event"]
    return [run.final_output, run.last_agent.name, names]


async def chosen(model: Any) -> dict[str, Any]:
    """A tool, a handoff and a session."""
    french = Agent(name="french", instructions="Speak French.", model=model)
    agent = Agent(name="a", instructions="Help.", tools=[now], handoffs=[french], model=model)
    whole = await Runner.run(agent, "What time is it?")
    handed = await Runner.run(agent, "Speak French, please.")
    session = SQLiteSession("one")
    for text in ("One.", "Two."):
        await Runner.run(french, text, session=session)
    return {
        "tool": [whole.final_output, [type(item).__name__ for item in whole.new_items]],
        "tool streamed": await watched(agent, "What time is it?"),
        "handoff": [handed.final_output, handed.last_agent.name],
        "handoff streamed": await watched(agent, "Speak French, please."),
        "session": len(await session.get_items()),
    }


async def conversation(model: Any) -> dict[str, Any]:
    """Runs that a conversation of the server joins: by its id, and as a session."""
    client = AsyncOpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
    agent = Agent(name="a", instructions="Help.", tools=[now], model=model)
    name = (await client.conversations.create()).id
    for text in ("What time is it?", "Thanks."):
        await Runner.run(agent, text, conversation_id=name)
    items = await client.conversations.items.list(name, order="asc")
    session = OpenAIConversationsSession()
    for text in ("What time is it?", "Thanks."):
        await Runner.run(agent, text, session=session)
    types = [item["type"] for item in await session.get_items()]
    return {"joined": [item.type for item in items.data], "session": types}


async def beside(model: Any) -> dict[str, Any]:
    """A tool, and an output in a format, whole and streamed."""
    agent = Agent(
        name="s",
        instructions="Help.",
        tools=[get_report],
        output_type=Sky,
        model=model,
        model_settings=ModelSettings(temperature=0),
    )
    whole = await Runner.run(agent, "Report the sky.")
    streamed, _, names = await watched(agent, "Report the sky.")
    return {
        "sky": [whole.final_output.sky, streamed.sky],
        "called": any(type(item).__name__ == "ToolCallItem" for item in whole.new_items)
        and "tool_called" in names,
    }


class Headers:
    """Keeps the acceptance figures of the headers of the last answer."""

    last: list[int] | None = None

    async def note(self, response: httpx2.Response) -> None:
        """A hook of an HTTP client."""
        names = ("x-specgate-draft-tokens", "x-specgate-accepted-draft-tokens")
        found = [int(response.headers[name]) for name in names if name in response.headers]
        self.last = found or None


HEADERS = Headers()


async def figures(model: Any) -> dict[str, Any]:
    """The acceptance figures, where the client keeps them."""
    settings = ModelSettings(
        temperature=0, include_usage=True, extra_body={"spec_decode": {"proposer": "ngram"}}
    )
    agent = Agent(name="a", model=model, model_settings=settings)
    told = {}
    for name in ("whole", "streamed"):
        if name == "whole":
            run: Any = await Runner.run(agent, "word")
        else:
            run = Runner.run_streamed(agent, "word")
            async for _ in run.stream_events():
                pass
        details = run.raw_responses[0].usage.output_tokens_details.model_dump()
        names = ("num_draft_tokens", "num_accepted_draft_tokens")
        counts = [details[name] for name in names if name in details]
        told[name] = {"usage": counts or None, "headers": HEADERS.last}
    return told


async def main() -> None:
    url, part = sys.argv[1:]
    http_client = httpx2.AsyncClient(event_hooks={"response": [HEADERS.note]})
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, http_client=http_client)
    set_tracing_disabled(True)
    set_default_openai_client(client)
    parts = {"forced": forced, "chosen": chosen, "beside": beside, "figures": figures}
    parts["conversation"] = conversation
    asked = parts[part]
    # A name is the default model class.
    models = {"default": MODEL, "chat": OpenAIChatCompletionsModel(MODEL, client)}
    if part == "conversation":
        del models["chat"]
    print(json.dumps({name: await asked(model) for name, model in models.items()}))


asyncio.run(main())
