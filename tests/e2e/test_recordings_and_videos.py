"""Recordings and videos from OpenAI's client, on a real engine."""

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests.e2e.served import Served
from tests.server.recordings import audio_part, compressed, tone, wav
from tests.server.videos import turned, video, video_part

pytestmark = [pytest.mark.engine, pytest.mark.prove]

MAX_TOKENS = 24
SECOND_TOKENS = 25
"""Of a second, for a model of Whisper's kind."""


@pytest.fixture(scope="module")
def client(hearing: Served) -> Iterator[openai.OpenAI]:
    with httpx.Client(trust_env=False, timeout=120) as http_client:
        transport: Any = http_client
        yield openai.OpenAI(
            base_url=f"{hearing.url}/v1", api_key="none", max_retries=0, http_client=transport
        )


def noise(seed: int, seconds: float = 1) -> bytes:
    samples = np.random.default_rng(seed).normal(0, 0.1, round(16_000 * seconds))
    return wav(samples.astype(np.float32))


def ask(client: openai.OpenAI, recording: bytes, proposer: str = "ngram", **fields: Any) -> Any:
    """The greedy answer of a chat."""
    parts: Any = [{"type": "text", "text": "What is this?"}, audio_part(recording)]
    return client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": parts}],
        max_tokens=MAX_TOKENS,
        temperature=0,
        extra_body={"spec_decode": {"proposer": proposer}},
        **fields,
    )


def test_a_chat_about_a_recording_is_the_same_with_a_proposer_and_streamed(
    client: openai.OpenAI,
) -> None:
    text = ask(client, noise(1), "none").choices[0].message.content
    assert ask(client, noise(1)).choices[0].message.content == text
    assert ask(client, noise(2)).choices[0].message.content != text
    chunks = ask(client, noise(1), stream=True)
    assert "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices) == text


def test_a_recording_counts_as_its_tokens(client: openai.OpenAI) -> None:
    used = [ask(client, noise(1, seconds)).usage.prompt_tokens for seconds in (1, 3)]
    assert used[1] - used[0] == 2 * SECOND_TOKENS


def test_a_recording_without_loss_is_the_same_in_another_format(client: openai.OpenAI) -> None:
    of_wav, of_flac = (ask(client, file) for file in (wav(tone(1)), compressed("flac", 1)))
    assert of_wav.usage.prompt_tokens == of_flac.usage.prompt_tokens
    assert of_wav.choices[0].message.content == of_flac.choices[0].message.content


def test_a_broken_recording_is_named(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"messages\.0\.content\.1\.input_audio\.data"):
        ask(client, b"no recording")


def test_a_chat_about_a_video_is_the_same_with_a_proposer(watching: Served) -> None:
    def ask(content: bytes, proposer: str) -> Any:
        parts = [{"type": "text", "text": "What is this?"}, video_part(content)]
        body = {
            "messages": [{"role": "user", "content": parts}],
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "spec_decode": {"proposer": proposer},
        }
        response = httpx.post(f"{watching.url}/v1/chat/completions", json=body, trust_env=False)
        assert response.status_code == 200, response.text
        return response.json()

    plain = ask(video(40), "none")
    text = plain["choices"][0]["message"]["content"]
    assert ask(video(40), "ngram")["choices"][0]["message"]["content"] == text
    assert ask(turned(video(40)), "ngram")["choices"][0]["message"]["content"] != text
    longer = ask(video(80), "ngram")
    assert longer["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"]
