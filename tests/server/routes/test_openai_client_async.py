"""OpenAI's Python client: its asynchronous half over every route, and what both halves parse."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.server.gateway import MODEL, eventually
from tests.server.threaded import ThreadedServer

MESSAGES: Any = [{"role": "user", "content": "Write a function."}]
CHAT: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
TEXT: Any = {"model": MODEL, "prompt": "def f(x):", "max_tokens": 12, "temperature": 0}


class Grade(BaseModel):
    """A grade."""

    letter: Literal["a", "b"]


class Verdict(BaseModel):
    """What an answer is parsed into."""

    ok: bool
    grades: list[Grade]


@pytest.fixture(scope="module")
def served() -> Iterator[ThreadedServer]:
    served = ThreadedServer(engine_args={"fake_step_ms": 1}).start()
    yield served
    served.stop()


@pytest.fixture
def sync(served: ThreadedServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def client(served: ThreadedServer) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{served.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


async def test_a_completion_is_that_of_the_other_client(
    client: openai.AsyncOpenAI, sync: openai.OpenAI
) -> None:
    whole = await client.completions.create(**TEXT, logprobs=2)
    assert whole.choices[0].text == sync.completions.create(**TEXT).choices[0].text
    assert whole.choices[0].logprobs is not None
    chunks = [chunk async for chunk in await client.completions.create(**TEXT, stream=True)]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text


async def test_a_chat_is_that_of_the_other_client(
    client: openai.AsyncOpenAI, sync: openai.OpenAI
) -> None:
    text = sync.chat.completions.create(**CHAT).choices[0].message.content
    whole = await client.chat.completions.create(**CHAT)
    assert whole.choices[0].message.content == text
    usage: Any = {"include_usage": True}
    opened = await client.chat.completions.create(**CHAT, stream=True, stream_options=usage)
    *chunks, last = [chunk async for chunk in opened]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert last.usage == whole.usage
    # The helper raises if a limit of tokens ended the text.
    whole_text = {**CHAT, "max_tokens": None, "n": 2, "logprobs": True}
    async with client.chat.completions.stream(**whole_text) as stream:
        kinds = {event.type async for event in stream}
        final = await stream.get_final_completion()
    assert {"content.delta", "content.done", "logprobs.content.delta"} <= kinds
    first, second = [choice.message.content or "" for choice in final.choices]
    assert first == second
    assert first.startswith(text or "?")


async def test_a_format_is_parsed_by_both_clients(
    client: openai.AsyncOpenAI, sync: openai.OpenAI
) -> None:
    asked: Any = {**CHAT, "max_tokens": 200, "response_format": Verdict}
    whole = sync.chat.completions.parse(**asked).choices[0].message.parsed
    assert isinstance(whole, Verdict)
    with sync.chat.completions.stream(**asked) as stream:
        done = [event for event in stream if event.type == "content.done"]
    assert [event.parsed for event in done] == [whole]
    parsed = await client.chat.completions.parse(**asked)
    assert parsed.choices[0].message.parsed == whole
    asked = {"model": MODEL, "input": "Judge.", "temperature": 0, "text_format": Verdict}
    response = await client.responses.parse(**asked)
    assert isinstance(response.output_parsed, Verdict)
    assert sync.responses.parse(**asked).output_parsed == response.output_parsed


async def test_a_responses_calls_are_parsed_by_both_clients(
    client: openai.AsyncOpenAI, sync: openai.OpenAI
) -> None:
    asked: Any = {
        "model": MODEL,
        "input": "Judge.",
        "temperature": 0,
        "tools": [openai.pydantic_function_tool(Verdict)],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    calls: list[Any] = [sync.responses.parse(**asked).output[0]]
    calls.append((await client.responses.parse(**asked)).output[0])
    async with client.responses.stream(**asked) as stream:
        calls.append((await stream.get_final_response()).output[0])
    arguments = [call.parsed_arguments for call in calls]
    assert isinstance(arguments[0], Verdict)
    assert arguments == [arguments[0]] * 3


async def test_raw_and_streamed_bodies_have_the_headers(
    client: openai.AsyncOpenAI, sync: openai.OpenAI
) -> None:
    raw = await client.chat.completions.with_raw_response.create(**CHAT)
    text = raw.parse().choices[0].message.content
    assert raw.headers["x-specgate-spec-method"] == "draft"
    assert raw.request_id
    async with client.chat.completions.with_streaming_response.create(**CHAT) as body:
        assert (await body.parse()).choices[0].message.content == text
        assert body.headers["x-specgate-spec-method"] == "draft"
    with sync.completions.with_streaming_response.create(**TEXT, stream=True) as lines:
        assert [line for line in lines.iter_lines() if line][-1] == "data: [DONE]"


async def test_models_and_errors(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError, match="nope"):
        await client.models.retrieve("nope")
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(**{**CHAT, "temperature": -1})
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError, match="embedding"):
        await client.embeddings.create(model=MODEL, input="a")


async def test_many_at_once_get_their_own_answers(client: openai.AsyncOpenAI) -> None:
    asked = [{**TEXT, "prompt": f"def f{index}(x):"} for index in range(12)]
    alone = [(await client.completions.create(**one)).choices[0].text for one in asked]
    together = await asyncio.gather(*(client.completions.create(**one) for one in asked))
    assert [answer.choices[0].text for answer in together] == alone
    assert len(set(alone)) > 1


async def test_leaving_a_stream_or_a_task_aborts_it(
    client: openai.AsyncOpenAI, served: ThreadedServer
) -> None:
    long: Any = {**TEXT, "max_tokens": 1500, "extra_body": {"ignore_eos": True}}
    async with await client.completions.create(**long, stream=True) as stream:
        await anext(aiter(stream))
        assert served.engine.num_running == 1
    await eventually(lambda: served.engine.num_running == 0)
    task = asyncio.create_task(client.completions.create(**long))
    await eventually(lambda: served.engine.num_running == 1)
    task.cancel()
    await eventually(lambda: served.engine.num_running == 0)
    with pytest.raises(asyncio.CancelledError):
        await task
