"""pydantic-ai: agents with typed output and with a tool, over both APIs."""

import asyncio
import json
import sys
from typing import Annotated, Any, Literal

import httpx2
from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelSettings, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class City(BaseModel):
    """A city."""

    size: Literal["small", "large"]
    people: Literal[1, 2]


class Sky(BaseModel):
    """The sky."""

    sky: Literal["rain", "sun"]


class Trip(BaseModel):
    """A trip."""

    first: City
    others: Annotated[list[City], Field(max_length=2)]


async def forced(model: Any, settings: ModelSettings) -> dict[str, Any]:
    """Output in the default mode, which is a required call, and in the native one, a format."""
    told: dict[str, Any] = {}
    for name, output in (("default", City), ("nested", Trip), ("native", NativeOutput(Trip))):
        agent = Agent(model, output_type=output, model_settings=settings)
        whole = (await agent.run("Name a city.")).output
        async with agent.run_stream("Name a city.") as stream:
            streamed = await stream.get_output()
        told[name] = [type(whole).__name__, type(streamed).__name__]
    return told


async def chosen(model: Any, settings: ModelSettings) -> dict[str, Any]:
    """A tool that the model calls, and the answer after it."""
    agent = Agent(model, model_settings=settings)

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return "rain in " + city

    turn = await agent.run("How is the weather?")
    parts = [part for message in turn.all_messages() for part in message.parts]
    async with agent.run_stream("How is the weather?") as stream:
        streamed = await stream.get_output()
    typed = Agent(model, output_type=City, tools=[get_weather], model_settings=settings)
    return {
        "loop": [type(part).__name__ for part in parts],
        "answers": [turn.output, streamed],
        "result": next(p.content for p in parts if type(p).__name__ == "ToolReturnPart"),
        "thoughts": [part.content for part in parts if type(part).__name__ == "ThinkingPart"],
        "typed": type((await typed.run("Name a city.")).output).__name__,
    }


async def beside(model: Any, settings: ModelSettings) -> dict[str, Any]:
    """A tool, and an output in a format, whole and streamed."""
    agent = Agent(model, output_type=NativeOutput(Sky), model_settings=settings)

    @agent.tool_plain
    def get_report(place: str) -> str:
        """What the sky is like."""
        return "the report says rain"

    turn = await agent.run("Report the sky.")
    async with agent.run_stream("Report the sky.") as stream:
        streamed = await stream.get_output()
    parts = [part for message in turn.all_messages() for part in message.parts]
    return {
        "sky": [turn.output.sky, streamed.sky],
        "called": any(type(part).__name__ == "ToolReturnPart" for part in parts),
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


async def figures(model: Any, settings: ModelSettings) -> dict[str, Any]:
    """The acceptance figures, where the client keeps them."""
    more = ModelSettings(temperature=0, extra_body={"spec_decode": {"proposer": "ngram"}})
    agent = Agent(model, model_settings=more)
    told = {}
    for name in ("whole", "streamed"):
        if name == "whole":
            turn: Any = await agent.run("word")
        else:
            async with agent.run_stream("word") as turn:
                await turn.get_output()
        details = turn.usage.details
        names = ("num_draft_tokens", "num_accepted_draft_tokens")
        counts = [details[name] for name in names if name in details]
        told[name] = {"usage": counts or None, "headers": HEADERS.last}
    return told


async def main() -> None:
    url, part = sys.argv[1:]
    http_client = httpx2.AsyncClient(event_hooks={"response": [HEADERS.note]})
    provider = OpenAIProvider(base_url=url, api_key="none", http_client=http_client)
    settings = ModelSettings(max_tokens=200, temperature=0, seed=1, parallel_tool_calls=False)
    told = {}
    for model in (OpenAIChatModel, OpenAIResponsesModel):
        made = model("specgate-demo", provider=provider)
        parts = {"forced": forced, "chosen": chosen, "beside": beside, "figures": figures}
        asked = parts[part]
        told[model.__name__] = await asked(made, settings)
    print(json.dumps(told))


asyncio.run(main())
