"""Pictures from the clients of OpenAI and Anthropic, on a real engine."""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.e2e.served import Served
from tests.server.pictures import data_url, encoded

pytestmark = [pytest.mark.engine, pytest.mark.prove]

QUESTION = "What is this?"
MAX_TOKENS = 24
PICTURE_TOKENS = 16 + 1
"""Of a picture, for the small LLaVA, and of the line that ends before it."""


@pytest.fixture(scope="module")
def transport() -> Iterator[Any]:
    with httpx.Client(trust_env=False, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def client(pictured: Served, transport: Any) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{pictured.url}/v1", api_key="none", max_retries=0, http_client=transport
    )


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def messages(seed: int | None) -> Any:
    """A chat with a picture, or with text alone."""
    parts: list[Any] = [{"type": "text", "text": QUESTION}]
    if seed is not None:
        parts.append({"type": "image_url", "image_url": {"url": data_url(encoded(seed=seed))}})
    return [{"role": "user", "content": parts}]


def ask(client: openai.OpenAI, model: str, seed: int | None, proposer: str = "ngram") -> Any:
    """The greedy answer of a chat."""
    return client.chat.completions.create(
        model=model,
        messages=messages(seed),
        max_tokens=MAX_TOKENS,
        temperature=0,
        extra_body={"spec_decode": {"proposer": proposer}},
    )


def test_a_chat_about_a_picture_is_the_same_with_a_proposer_and_streamed(
    client: openai.OpenAI, model: str
) -> None:
    plain = ask(client, model, 1, "none")
    text = plain.choices[0].message.content
    assert ask(client, model, 1).choices[0].message.content == text
    assert ask(client, model, 2).choices[0].message.content != text
    chunks = client.chat.completions.create(
        model=model, messages=messages(1), max_tokens=MAX_TOKENS, temperature=0, stream=True
    )
    assert "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices) == text


def test_a_picture_counts_as_its_tokens(client: openai.OpenAI, model: str) -> None:
    used = [ask(client, model, seed).usage.prompt_tokens for seed in (1, None)]
    assert used[0] - used[1] == PICTURE_TOKENS


def test_a_response_is_the_chats(client: openai.OpenAI, model: str) -> None:
    parts: Any = [
        {"type": "input_text", "text": QUESTION},
        {"type": "input_image", "image_url": data_url(encoded(seed=1)), "detail": "auto"},
    ]
    response = client.responses.create(
        model=model,
        input=[{"role": "user", "content": parts}],
        max_output_tokens=MAX_TOKENS,
        temperature=0,
    )
    assert response.output_text == ask(client, model, 1).choices[0].message.content


def test_a_message_of_anthropics_client_is_the_chats(
    pictured: Served, client: openai.OpenAI, model: str
) -> None:
    data = data_url(encoded(seed=1)).partition(",")[2]
    parts: Any = [
        {"type": "text", "text": QUESTION},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
    ]
    with anthropic.DefaultHttpxClient(trust_env=False, timeout=120) as http_client:
        claude = anthropic.Anthropic(
            base_url=pictured.url, api_key="none", max_retries=0, http_client=http_client
        )
        message = claude.messages.create(
            model=model,
            messages=[{"role": "user", "content": parts}],
            max_tokens=MAX_TOKENS,
            extra_body={"temperature": 0},
        )
    (block,) = message.content
    assert block.type == "text"
    assert block.text == ask(client, model, 1).choices[0].message.content


def test_a_broken_picture_is_named(client: openai.OpenAI, model: str) -> None:
    chat = messages(1)
    chat[0]["content"][1]["image_url"]["url"] = data_url(encoded()[:100])
    with pytest.raises(openai.BadRequestError, match=r"messages\.0\.content\.1\.image_url\.url"):
        client.chat.completions.create(model=model, messages=chat, max_tokens=4)
