"""`stream_interval`: how many tokens a chunk has, and what answers in one piece ask for."""

from typing import Any

import pytest

from server.openai.request import WHOLE_INTERVAL
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, events, record_requests

BODY = {
    "max_tokens": 30,
    "ignore_eos": True,
    "temperature": 0,
    "return_token_ids": True,
    "spec_decode": {"proposer": "none"},
}


async def chunk_sizes(gateway: Gateway, **fields: Any) -> tuple[list[int], str]:
    """The tokens of each chunk of a stream, and its text."""
    response = await gateway.complete("a", stream=True, **BODY, **fields)
    choices = [choice for chunk in events(response) for choice in chunk["choices"]]
    sizes = [len(choice["token_ids"]) for choice in choices if choice.get("token_ids")]
    return sizes, "".join(choice["text"] for choice in choices)


async def test_a_stream_has_chunks_of_as_many_tokens(start: StartGateway) -> None:
    gateway = await start()
    sizes, text = await chunk_sizes(gateway, stream_interval=8)
    assert sizes == [1, 8, 8, 8, 5]
    single, same_text = await chunk_sizes(gateway)
    # A token that is a part of a character comes with the rest of it.
    assert (max(single) <= 3, sum(single), same_text) == (True, 30, text)


async def test_the_engine_sends_a_whole_answer_in_few_deltas(
    start: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start()
    requests = record_requests(gateway, monkeypatch)
    for fields in ({}, {"stream_interval": 5}, {"stream_interval": 500}):
        for stream in (True, False):
            await gateway.complete("a", stream=stream, **fields)
            await gateway.chat("a", stream=stream, **fields)
    intervals = [request.stream_interval for request in requests]
    assert intervals[:4] == [1, 1, WHOLE_INTERVAL, WHOLE_INTERVAL]
    assert intervals[4:8] == [5, 5, WHOLE_INTERVAL, WHOLE_INTERVAL]
    assert intervals[8:] == [500] * 4


async def test_a_whole_answer_is_that_of_its_stream(start: StartGateway) -> None:
    gateway = await start()
    whole = (await gateway.complete("a", **BODY)).json()["choices"][0]
    sizes, text = await chunk_sizes(gateway)
    assert (len(whole["token_ids"]), whole["text"]) == (sum(sizes), text)


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
async def test_a_value_that_is_not_a_positive_integer_is_refused(
    gateway: Gateway, value: Any
) -> None:
    error = (await gateway.complete(stream=True, stream_interval=value)).json()["error"]
    assert error["param"] == "stream_interval"
