"""OpenAI's Python client with tools: create, stream helper and parse, sync and async."""

from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from tests.server.gateway import MODEL
from tests.server.threaded import ThreadedServer


class GetWeather(BaseModel):
    """The weather of a city."""

    city: str
    unit: Literal["celsius", "kelvin"]
    days: list[int] = Field(description="days from now")


class Stop(BaseModel):
    """Ends the chat."""


TOOLS: Any = [openai.pydantic_function_tool(GetWeather), openai.pydantic_function_tool(Stop)]
ASKED: Any = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "How is the weather?"}],
    "tools": TOOLS,
    "tool_choice": "required",
    "seed": 7,
}


@pytest.fixture(scope="module")
def served() -> Iterator[ThreadedServer]:
    answer = '<tool_call>{"name": "Stop", "arguments": {}}</tool_call>'
    served = ThreadedServer(
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
        reasoning_parser="deepseek_r1",
        engine_args={"fake_step_ms": 0, "fake_answers": {"choose": "<think>So.</think>" + answer}},
    ).start()
    yield served
    served.stop()


@pytest.fixture(scope="module")
def client(served: ThreadedServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def functions(message: Any) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in message.tool_calls]


def check_parsed(message: Any) -> None:
    """Every call has the model that its arguments fit."""
    models = {"GetWeather": GetWeather, "Stop": Stop}
    for call in message.tool_calls:
        assert isinstance(call.function.parsed_arguments, models[call.function.name])


def test_created_streamed_and_parsed_calls_are_the_same(client: openai.OpenAI) -> None:
    for seed in range(5):
        asked = {**ASKED, "seed": seed}
        created = client.chat.completions.create(**asked).choices[0]
        assert (created.finish_reason, created.message.content) == ("tool_calls", None)
        parsed = client.chat.completions.parse(**asked).choices[0].message
        check_parsed(parsed)
        with client.chat.completions.stream(**asked) as stream:
            events = list(stream)
            final = stream.get_final_completion().choices[0]
        check_parsed(final.message)
        assert final.finish_reason == "tool_calls"
        calls = functions(created.message)
        assert functions(parsed) == functions(final.message) == calls
        done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
        assert [(event.name, event.arguments) for event in done] == calls
        deltas = [e for e in events if e.type == "tool_calls.function.arguments.delta"]
        assert "".join(e.arguments_delta for e in deltas) == "".join(text for _, text in calls)


async def test_the_asynchronous_client_gets_the_same(
    client: openai.OpenAI, served: ThreadedServer
) -> None:
    whole = functions(client.chat.completions.create(**ASKED).choices[0].message)
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as own:
        created = await own.chat.completions.create(**ASKED)
        assert functions(created.choices[0].message) == whole
        parsed = await own.chat.completions.parse(**ASKED)
        check_parsed(parsed.choices[0].message)
        async with own.chat.completions.stream(**ASKED) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_completion()
        assert functions(final.choices[0].message) == whole


def test_a_named_call_and_the_turn_after_it(client: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "GetWeather"}}
    first = client.chat.completions.parse(**{**ASKED, "tool_choice": named}).choices[0]
    assert first.finish_reason == "stop"
    (call,) = list(first.message.tool_calls or ())
    history = [
        *ASKED["messages"],
        first.message.model_dump(exclude={"parsed"}),
        {"role": "tool", "tool_call_id": call.id, "content": "It rains."},
    ]
    answer = client.chat.completions.create(
        model=MODEL, messages=history, tools=TOOLS, tool_choice="none", max_tokens=8
    )
    assert answer.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_the_model_may_choose_and_reason(client: openai.OpenAI, stream: bool) -> None:
    asked = {
        **ASKED,
        "messages": [{"role": "user", "content": "choose"}],
        "tool_choice": openai.NOT_GIVEN,
    }
    if stream:
        with client.chat.completions.stream(**asked) as opened:
            choice: Any = opened.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(**asked).choices[0]
    assert (choice.finish_reason, functions(choice.message)) == ("tool_calls", [("Stop", "{}")])
    assert choice.message.reasoning_content == "So."


def test_a_wrong_tool_is_the_clients_exception(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{**ASKED, "tools": [*TOOLS, TOOLS[0]]})
    assert caught.value.param == "tools.2.function.name"
