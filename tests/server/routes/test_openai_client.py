"""OpenAI's own Python client against a server on a loopback port."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.server.gateway import MODEL
from tests.server.threaded import ThreadedServer

MESSAGES: Any = [{"role": "user", "content": "Write a function."}]
BY_NGRAM = {"spec_decode": {"proposer": "ngram", "num_speculative_tokens": 3}}


@pytest.fixture(scope="module")
def served() -> Iterator[ThreadedServer]:
    served = ThreadedServer(engine_args={"fake_step_ms": 1}).start()
    yield served
    served.stop()


@pytest.fixture(scope="module")
def client(served: ThreadedServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_completion_whole_and_streamed(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "prompt": "def f(x):", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**asked)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12
    with client.completions.create(**asked, stream=True) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    text = whole.choices[0].message.content
    asked["stream_options"] = {"include_usage": True}
    with client.chat.completions.create(**asked, stream=True) as stream:
        *chunks, last = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert chunks[-1].choices[0].finish_reason == "length"
    assert last.choices == []
    assert last.usage == whole.usage


def test_clients_own_stream_helper_rebuilds_the_message(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": MESSAGES, "seed": 3, "n": 2, "logprobs": True}
    with client.chat.completions.stream(**asked) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    whole = client.chat.completions.create(**asked)
    for streamed, at_once in zip(final.choices, whole.choices, strict=True):
        assert streamed.message.content == at_once.message.content
        assert streamed.finish_reason == at_once.finish_reason
        assert streamed.logprobs is not None
        assert at_once.logprobs is not None
        assert streamed.logprobs.content == at_once.logprobs.content


@pytest.mark.parametrize("stream", [False, True])
def test_two_choices(client: openai.OpenAI, stream: bool) -> None:
    asked: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "seed": 5, "n": 2}
    texts = {0: "", 1: ""}
    if stream:
        for chunk in client.chat.completions.create(**asked, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
    else:
        for choice in client.chat.completions.create(**asked).choices:
            texts[choice.index] = choice.message.content or ""
    assert texts[0]
    assert texts[1]
    assert texts[0] != texts[1]


def test_extra_body_selects_the_proposer(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=MESSAGES, max_tokens=12, extra_body=BY_NGRAM
    )
    assert raw.headers["x-specgate-spec-method"] == "ngram"
    extra = raw.parse().model_extra or {}
    figures = extra["metrics"]["speculative_decoding"]
    assert (figures["proposer"], figures["num_spec_tokens"]) == ("ngram", 3)
    stream = client.completions.create(
        model=MODEL, prompt="a", max_tokens=12, extra_body=BY_NGRAM, stream=True
    )
    *_, last = list(stream)
    figures = (last.model_extra or {})["metrics"]["speculative_decoding"]
    assert (figures["proposer"], figures["num_spec_tokens"]) == ("ngram", 3)


def test_logprobs_are_read(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=2
    )
    assert chat.choices[0].logprobs is not None
    assert [len(c.top_logprobs) for c in chat.choices[0].logprobs.content or ()] == [2, 2, 2]
    completion = client.completions.create(model=MODEL, prompt="a", max_tokens=3, logprobs=2)
    assert completion.choices[0].logprobs is not None
    assert len(completion.choices[0].logprobs.token_logprobs or ()) == 3


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_errors_are_the_clients_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="nope", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES, extra_body={"speculative_model": "nope"}
        )
    assert (bad.value.param, bad.value.code) == ("speculative_model", "proposer_not_found")
    assert bad.value.request_id


def test_closing_a_stream_aborts_it(client: openai.OpenAI, served: ThreadedServer) -> None:
    stream = client.completions.create(
        model=MODEL, prompt="a", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    assert served.engine.num_running == 1
    stream.close()
    deadline = time.monotonic() + 60
    while served.engine.num_running:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_client_timeout_aborts_a_whole_response(served: ThreadedServer) -> None:
    host, _, port = served.url.removeprefix("http://").partition(":")
    body = json.dumps({"prompt": "a", "max_tokens": 1500, "ignore_eos": True})
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        deadline = time.monotonic() + 60
        while not served.engine.num_running:
            assert time.monotonic() < deadline
            time.sleep(0.002)
    while served.engine.num_running:
        assert time.monotonic() < deadline
        time.sleep(0.002)
