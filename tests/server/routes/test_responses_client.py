"""OpenAI's own Python client for `/v1/responses`, sync and async, against a loopback port."""

import time
from collections.abc import Iterator
from typing import Any, cast

import openai
import pytest
from openai.types.responses import (
    ResponseCompletedEvent,
    ResponseCreatedEvent,
    ResponseIncompleteEvent,
    ResponseInputMessageItem,
    ResponseQueuedEvent,
    ResponseTextDeltaEvent,
)

from tests.server.gateway import MODEL
from tests.server.threaded import ThreadedServer

ASKED: dict[str, Any] = {"model": MODEL, "input": "Write a function.", "temperature": 0}
SHORT: dict[str, Any] = {**ASKED, "max_output_tokens": 12}


@pytest.fixture(scope="module")
def served() -> Iterator[ThreadedServer]:
    served = ThreadedServer(engine_args={"fake_step_ms": 1, "fake_length": 20}).start()
    yield served
    served.stop()


@pytest.fixture(scope="module")
def client(served: ThreadedServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_whole_and_streamed_are_equal(client: openai.OpenAI) -> None:
    whole = client.responses.create(**SHORT)
    assert whole.status == "incomplete"
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage is not None
    assert whole.usage.output_tokens == 12
    with client.responses.create(**SHORT, stream=True) as stream:
        events = list(stream)
    assert isinstance(events[0], ResponseCreatedEvent)
    assert isinstance(events[-1], ResponseIncompleteEvent)
    deltas = [event.delta for event in events if isinstance(event, ResponseTextDeltaEvent)]
    assert "".join(deltas) == whole.output_text == events[-1].response.output_text
    assert events[-1].response.usage == whole.usage


def test_the_clients_stream_helper_rebuilds_the_response(client: openai.OpenAI) -> None:
    with client.responses.stream(**ASKED) as stream:
        snapshots = [e.snapshot for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert final.status == "completed"
    assert final.output_text == snapshots[-1] == client.responses.create(**ASKED).output_text


def test_a_conversation_is_continued_read_listed_and_deleted(client: openai.OpenAI) -> None:
    first = client.responses.create(**SHORT)
    second = client.responses.create(
        **{**SHORT, "input": "Again."}, previous_response_id=first.id, metadata={"a": "b"}
    )
    found = client.responses.retrieve(second.id)
    assert found == second
    items = list(client.responses.input_items.list(second.id, limit=1))
    assert len(items) == 3
    assert isinstance(items[0], ResponseInputMessageItem)
    assert items[0].content[0].type == "input_text"
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.retrieve(second.id)
    assert missing.value.code == "response_not_found"
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(first.id)


def test_the_clients_own_output_items_are_input_again(client: openai.OpenAI) -> None:
    first = client.responses.create(**SHORT)
    given: Any = [{"role": "user", "content": ASKED["input"]}, *first.output]
    given.append({"role": "user", "content": "Again."})
    by_items = client.responses.create(**{**SHORT, "input": given}, store=False)
    by_id = client.responses.create(**{**SHORT, "input": "Again."}, previous_response_id=first.id)
    assert by_items.output_text == by_id.output_text


def test_extra_body_selects_the_proposer(client: openai.OpenAI) -> None:
    raw = client.responses.with_raw_response.create(
        **SHORT, extra_body={"spec_decode": {"proposer": "ngram", "num_speculative_tokens": 3}}
    )
    assert raw.headers["x-specgate-spec-method"] == "ngram"
    told = (raw.parse().model_extra or {})["metrics"]["speculative_decoding"]
    assert (told["proposer"], told["num_spec_tokens"]) == ("ngram", 3)


def test_log_probabilities_are_read(client: openai.OpenAI) -> None:
    asked: Any = {**SHORT, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    (item,) = client.responses.create(**asked).output
    assert item.type == "message"
    (part,) = item.content
    assert part.type == "output_text"
    assert [len(token.top_logprobs) for token in part.logprobs or ()] == [2] * 12


def test_errors_are_the_clients_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.responses.create(**SHORT, tools=cast(Any, [{"type": "browser"}]))
    assert (bad.value.param, bad.value.code) == ("tools.0", "unsupported_parameter")
    with pytest.raises(openai.BadRequestError) as unknown:
        client.responses.create(**SHORT, previous_response_id="resp_x")
    assert unknown.value.code == "previous_response_not_found"


async def test_the_async_client(served: ThreadedServer) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{served.url}/v1", api_key="none", max_retries=0
    ) as client:
        whole = await client.responses.create(**ASKED)
        events = [event async for event in await client.responses.create(**ASKED, stream=True)]
        assert isinstance(events[-1], ResponseCompletedEvent)
        assert events[-1].response.output_text == whole.output_text
        async with client.responses.stream(**ASKED) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert kinds[-1] == "response.completed"
        assert final.output_text == whole.output_text
        assert (await client.responses.retrieve(whole.id)).output_text == whole.output_text
        items = [item async for item in client.responses.input_items.list(whole.id)]
        assert len(items) == 1
        await client.responses.delete(whole.id)


def test_a_response_in_the_background_is_polled(client: openai.OpenAI) -> None:
    response = client.responses.create(**SHORT, background=True)
    assert response.background
    while response.status in ("queued", "in_progress"):
        time.sleep(0.01)
        response = client.responses.retrieve(response.id)
    assert response.status == "incomplete"
    assert response.output_text == client.responses.create(**SHORT).output_text


def test_a_stream_in_the_background_is_resumed(client: openai.OpenAI) -> None:
    with client.responses.create(**ASKED, background=True, stream=True) as stream:
        first, second, third = (next(stream) for _ in range(3))
    assert isinstance(first, ResponseCreatedEvent)
    assert isinstance(second, ResponseQueuedEvent)
    assert first.response.status == second.response.status == "queued"
    with client.responses.retrieve(
        first.response.id, stream=True, starting_after=third.sequence_number
    ) as rest:
        events = list(rest)
    assert [event.sequence_number for event in events[:2]] == [3, 4]
    assert isinstance(events[-1], ResponseCompletedEvent)
    with client.responses.stream(response_id=first.response.id) as helper:
        assert helper.get_final_response().output_text == events[-1].response.output_text


def test_a_response_in_the_background_is_cancelled(client: openai.OpenAI) -> None:
    response = client.responses.create(**ASKED, background=True, extra_body={"ignore_eos": True})
    cancelled = client.responses.cancel(response.id)
    assert cancelled.status == "cancelled"
    assert (
        client.responses.cancel(response.id) == cancelled == client.responses.retrieve(response.id)
    )


def test_the_tokens_of_an_input_are_counted(client: openai.OpenAI) -> None:
    counted = client.responses.input_tokens.count(model=MODEL, input="Write a function.")
    usage = client.responses.create(**SHORT).usage
    assert usage is not None
    assert counted.input_tokens == usage.input_tokens


def test_a_conversation_is_compacted(client: openai.OpenAI) -> None:
    first = client.responses.create(**SHORT)
    compacted = client.responses.compact(model=MODEL, previous_response_id=first.id)
    assert compacted.output[-1].type == "compaction"
    # The client declares the user's messages there as answers, and would warn of that.
    items: Any = [item.model_dump(exclude_none=True, warnings=False) for item in compacted.output]
    again = client.responses.create(**SHORT | {"input": [*items, {"role": "user", "content": "a"}]})
    assert again.output_text


def test_a_conversation_is_continued_and_its_items_listed(client: openai.OpenAI) -> None:
    conversation = client.conversations.create(
        items=[{"type": "message", "role": "user", "content": "One."}], metadata={"topic": "a"}
    )
    first = client.responses.create(**SHORT, conversation=conversation.id)
    assert first.conversation is not None
    assert first.conversation.id == conversation.id
    second = client.responses.create(**SHORT, conversation={"id": conversation.id})
    items = list(client.conversations.items.list(conversation.id, order="asc", limit=2))
    assert [item.type for item in items] == ["message"] * 5
    assert items[-1].id == second.output[0].id
    item_id = items[0].id
    assert item_id is not None
    client.conversations.items.delete(item_id, conversation_id=conversation.id)
    added = client.conversations.items.create(
        conversation.id, items=[{"role": "user", "content": "More."}]
    )
    item_id = added.data[0].id
    assert item_id is not None
    read = client.conversations.items.retrieve(item_id, conversation_id=conversation.id)
    assert read == added.data[0]
    assert client.conversations.update(conversation.id, metadata={"b": "c"}).metadata == {"b": "c"}
    assert client.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(conversation.id)
