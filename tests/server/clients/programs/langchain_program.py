"""LangChain: structured output in its three methods, and an agent with a tool."""

import asyncio
import json
import sys
import warnings
from typing import Any, Literal

from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

# openai-python's parsed messages make pydantic warn when LangChain dumps them.
warnings.filterwarnings("ignore", "Pydantic serializer warnings")


class City(BaseModel):
    """A city."""

    size: Literal["small", "large"]
    sunny: bool


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return "rain in " + city


class Sky(BaseModel):
    """The sky."""

    sky: Literal["rain", "sun"]


@tool
def get_report(place: str) -> str:
    """What the sky is like."""
    return "the report says rain"


async def forced(model: ChatOpenAI) -> dict[str, Any]:
    """Calls and formats that a schema holds."""
    told: dict[str, Any] = {}
    for method in ("function_calling", "json_schema"):
        asked = model.with_structured_output(City, method=method)
        *_, streamed = asked.stream("Name a city as JSON.")
        found = [asked.invoke("Name a city as JSON."), streamed]
        found.append(await asked.ainvoke("Name a city as JSON."))
        strict = model.with_structured_output(City, method=method, strict=True, include_raw=True)
        found.append(strict.invoke("Name a city as JSON.")["parsed"])
        told[method] = [type(one).__name__ for one in found]
    called = model.bind_tools([City], tool_choice="any", parallel_tool_calls=False)
    whole, streamed = called.invoke("Hello."), None
    for chunk in called.stream("Hello."):
        streamed = chunk if streamed is None else streamed + chunk
    told["calls"] = [[call["args"] for call in one.tool_calls] for one in (whole, streamed)]
    return told


async def json_mode(model: ChatOpenAI) -> dict[str, Any]:
    """Any JSON object."""
    asked = model.with_structured_output(None, method="json_mode")
    found = [asked.invoke("A wish as JSON."), await asked.ainvoke("A wish as JSON.")]
    return {"json_mode": [type(one).__name__ for one in found]}


async def chosen(model: ChatOpenAI) -> dict[str, Any]:
    """A loop of an agent: the model calls the tool, then answers."""
    asked: Any = {"messages": [{"role": "user", "content": "How is the weather?"}]}
    agent = create_agent(model, [get_weather])
    whole = agent.invoke(asked)["messages"]
    *_, last = [update async for update in agent.astream(asked, stream_mode="values")]
    one_call = model.model_copy(update={"model_kwargs": {"parallel_tool_calls": False}})
    typed = create_agent(one_call, [get_weather], response_format=City).invoke(asked)
    return {
        "loop": [[type(message).__name__, message.text] for message in whole],
        "streamed": [[type(message).__name__, message.text] for message in last["messages"]],
        "typed": type(typed["structured_response"]).__name__,
    }


async def beside(model: ChatOpenAI) -> dict[str, Any]:
    """A tool, and an output in a format, whole and streamed."""
    asked: Any = {"messages": [{"role": "user", "content": "Report the sky."}]}
    agent = create_agent(model, [get_report], response_format=ProviderStrategy(Sky))
    whole = agent.invoke(asked)
    *_, last = [update async for update in agent.astream(asked, stream_mode="values")]
    return {
        "sky": [one["structured_response"].sky for one in (whole, last)],
        "called": any(type(message).__name__ == "ToolMessage" for message in whole["messages"]),
    }


def drafts(counts: Any, drafted: str, accepted: str) -> list[int] | None:
    """The drafted and the accepted tokens of a usage or of headers."""
    if not counts or drafted not in counts:
        return None
    return [int(counts[drafted]), int(counts[accepted])]


async def figures(model: ChatOpenAI) -> dict[str, Any]:
    """The acceptance figures, where the client keeps them."""
    model_with_headers = model.model_copy(
        update={
            "extra_body": {"spec_decode": {"proposer": "ngram"}},
            "include_response_headers": True,
            "stream_usage": True,
            "max_tokens": None,
        }
    )
    streamed = None
    for chunk in model_with_headers.stream("word"):
        streamed = chunk if streamed is None else streamed + chunk
    told = {}
    for name, message in (("whole", model_with_headers.invoke("word")), ("streamed", streamed)):
        metadata = message.response_metadata
        details = metadata.get("token_usage", {}).get("completion_tokens_details")
        headers = metadata["headers"]
        told[name] = {
            "usage": drafts(details, "num_draft_tokens", "num_accepted_draft_tokens"),
            "headers": drafts(
                headers, "x-specgate-draft-tokens", "x-specgate-accepted-draft-tokens"
            ),
        }
    return told


async def main() -> None:
    url, part = sys.argv[1:]
    told = {}
    for api in ("chat", "responses"):
        model = ChatOpenAI(
            base_url=url,
            api_key="none",
            model="specgate-demo",
            max_retries=0,
            max_tokens=200,
            temperature=0,
            use_responses_api=api == "responses",
        )
        parts = {
            "forced": forced,
            "json_mode": json_mode,
            "chosen": chosen,
            "beside": beside,
            "figures": figures,
        }
        told[api] = await parts[part](model)
    print(json.dumps(told))


asyncio.run(main())
