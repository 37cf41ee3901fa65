"""Token ids and the prompt's log probabilities in responses and streams."""

from typing import Any

import pytest

from tests.server.gateway import Gateway, events

FIELDS: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "return_token_ids": True}


async def test_a_completion_has_the_ids_of_prompt_and_text(gateway: Gateway) -> None:
    body = (await gateway.complete([[5, 6, 7], [8, 9]], n=2, **FIELDS)).json()
    assert [c["prompt_token_ids"] for c in body["choices"]] == [[5, 6, 7]] * 2 + [[8, 9]] * 2
    for choice in body["choices"]:
        decoded = await gateway.post("/detokenize", {"tokens": choice["token_ids"]})
        assert decoded.json()["prompt"] == choice["text"]
    assert sum(len(c["token_ids"]) for c in body["choices"]) == body["usage"]["completion_tokens"]
    assert "prompt_token_ids" not in body


async def test_a_chat_has_the_prompts_ids_once(gateway: Gateway) -> None:
    body = (await gateway.chat(n=2, **FIELDS)).json()
    messages = [{"role": "user", "content": "Say hello."}]
    rendered = (await gateway.post("/tokenize", {"messages": messages})).json()["tokens"]
    assert body["prompt_token_ids"] == rendered
    assert all("prompt_token_ids" not in choice for choice in body["choices"])
    assert sum(len(c["token_ids"]) for c in body["choices"]) == body["usage"]["completion_tokens"]


@pytest.mark.parametrize("stop", [None, "e"])
async def test_the_chunks_of_a_stream_have_all_ids_in_order(
    gateway: Gateway, stop: str | None
) -> None:
    for ask in (gateway.complete, gateway.chat):
        whole = (await ask(**FIELDS, stop=stop)).json()
        chunks = events(await ask(**FIELDS, stop=stop, stream=True))
        choices = [chunk["choices"][0] for chunk in chunks]
        streamed = [token for choice in choices for token in choice.get("token_ids", ())]
        assert streamed == whole["choices"][0]["token_ids"]
        holders = [part for part in (*chunks, *choices) if "prompt_token_ids" in part]
        assert len(holders) == 1
        shown = whole if ask == gateway.chat else whole["choices"][0]
        assert holders[0]["prompt_token_ids"] == shown["prompt_token_ids"]
        assert holders[0] in (chunks[0], choices[0])


async def test_a_first_chunk_that_waits_for_a_whole_character_has_the_prompts_ids(
    gateway: Gateway,
) -> None:
    waited = 0
    for i in range(5, 45):
        fields: dict[str, Any] = {"temperature": 0, "max_tokens": 3, "return_token_ids": True}
        chunks = events(await gateway.complete([i], **fields, stream=True))
        first, *others = [chunk["choices"][0] for chunk in chunks]
        assert first["prompt_token_ids"] == [i]
        assert not any("prompt_token_ids" in choice for choice in others)
        waited += len(first["token_ids"]) > len(first["text"])
    assert waited, "no prompt's text began with an incomplete character"


async def test_without_the_field_no_response_has_ids(gateway: Gateway) -> None:
    for ask in (gateway.complete, gateway.chat):
        for value in (None, False):
            text = (await ask(max_tokens=3, return_token_ids=value)).text
            text += (await ask(max_tokens=3, return_token_ids=value, stream=True)).text
            assert "token_ids" not in text
            assert "prompt_logprobs" not in text


async def test_prompt_logprobs_have_every_token_of_the_prompt(gateway: Gateway) -> None:
    prompt = [5, 6, 7, 8]
    body = (await gateway.complete(prompt, max_tokens=2, prompt_logprobs=2, logprobs=1)).json()
    choice = body["choices"][0]
    first, *others = choice["prompt_logprobs"]
    assert first is None
    for token, position in zip(prompt[1:], others, strict=True):
        assert str(token) in position
        assert 2 <= len(position) <= 3
        assert {1, 2} <= {one["rank"] for one in position.values()}
        for one in position.values():
            assert set(one) == {"logprob", "rank", "decoded_token"}
            assert one["logprob"] <= 0
    assert len(choice["logprobs"]["tokens"]) == 2, "without echo they are the text's alone"
    body = (await gateway.chat(max_tokens=2, prompt_logprobs=0, return_token_ids=True)).json()
    assert len(body["prompt_logprobs"]) == len(body["prompt_token_ids"])
    assert [len(position) for position in body["prompt_logprobs"][1:]] == [1] * (
        len(body["prompt_token_ids"]) - 1
    )


async def test_echo_and_prompt_logprobs_have_their_own_numbers(gateway: Gateway) -> None:
    fields: dict[str, Any] = {"max_tokens": 0, "echo": True, "logprobs": 1, "prompt_logprobs": 3}
    choice = (await gateway.complete([5, 6, 7], **fields)).json()["choices"][0]
    assert max(len(top) for top in choice["logprobs"]["top_logprobs"][1:]) <= 2
    assert all(len(position) >= 3 for position in choice["prompt_logprobs"][1:])


@pytest.mark.parametrize(
    "fields",
    [{"prompt_logprobs": 21}, {"prompt_logprobs": -1}, {"prompt_logprobs": 1, "stream": True}],
)
async def test_prompt_logprobs_that_cannot_be_returned_are_refused(
    gateway: Gateway, fields: dict[str, Any]
) -> None:
    for ask in (gateway.complete, gateway.chat):
        response = await ask(**fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "prompt_logprobs"
