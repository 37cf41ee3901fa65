"""`POST /inference/v1/generate`: token ids in, token ids out."""

from typing import Any

import pytest

from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, events

PATH = "/inference/v1/generate"
PROMPT = [1, 5, 6, 7]


@pytest.fixture
async def gateway(start: StartGateway) -> Gateway:
    return await start()


def body(**fields: Any) -> dict[str, Any]:
    sampling = {"max_tokens": 6, "temperature": 0, **fields.pop("sampling", {})}
    return {"token_ids": PROMPT, "sampling_params": sampling, **fields}


async def test_it_generates_the_tokens_of_a_completion(gateway: Gateway) -> None:
    answer = (await gateway.post(PATH, body())).json()
    completion = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "return_token_ids": True}
    expected = (await gateway.post("/v1/completions", completion)).json()
    (choice,) = answer["choices"]
    assert choice["token_ids"] == expected["choices"][0]["token_ids"]
    assert choice["finish_reason"] == expected["choices"][0]["finish_reason"]
    assert "text" not in choice
    assert choice["logprobs"] is None
    assert answer["request_id"] == answer["id"]
    assert answer["usage"] == expected["usage"]
    assert "prompt_token_ids" not in answer


async def test_the_text_and_the_prompt_come_if_they_are_asked_for(gateway: Gateway) -> None:
    fields = {"output_mode": "text", "return_token_ids": True}
    answer = (await gateway.post(PATH, body(**fields))).json()
    assert answer["output_mode"] == "text"
    assert answer["prompt_token_ids"] == PROMPT
    (choice,) = answer["choices"]
    shown = (await gateway.post("/detokenize", {"tokens": choice["token_ids"]})).json()
    # The last character may be incomplete.
    assert choice["text"].rstrip("\ufffd") == shown["prompt"].rstrip("\ufffd")


async def test_log_probabilities_name_tokens_by_their_ids(gateway: Gateway) -> None:
    answer = (await gateway.post(PATH, body(sampling={"logprobs": 2}))).json()
    (choice,) = answer["choices"]
    entries = choice["logprobs"]["content"]
    assert [entry["token_id"] for entry in entries] == choice["token_ids"]
    assert {len(entry["top_logprobs"]) for entry in entries} == {2}
    assert all(entry["logprob"] <= 0 and entry["rank"] >= 1 for entry in entries)
    request = body(sampling={"logprobs": 2}, output_mode="text")
    (choice,) = (await gateway.post(PATH, request)).json()["choices"]
    text = "".join(entry["token"] for entry in choice["logprobs"]["content"])
    assert text.rstrip("\ufffd") == choice["text"].rstrip("\ufffd")


async def test_a_stream_has_the_same_tokens(gateway: Gateway) -> None:
    whole = (await gateway.post(PATH, body(sampling={"logprobs": 1, "n": 2}))).json()
    streamed: dict[int, list[int]] = {}
    options = {"include_usage": True}
    stream = body(sampling={"logprobs": 1, "n": 2}, stream=True, stream_options=options)
    *chunks, last = events(await gateway.post(PATH, stream))
    for chunk in chunks:
        assert chunk["object"] == "generation.chunk"
        for choice in chunk["choices"]:
            tokens = [entry["token_id"] for entry in choice["logprobs"]["content"]]
            assert tokens == choice["token_ids"]
            streamed.setdefault(choice["index"], []).extend(tokens)
    assert streamed == {choice["index"]: choice["token_ids"] for choice in whole["choices"]}
    assert last["usage"] == whole["usage"]


async def test_without_a_limit_it_generates_up_to_the_end_of_the_context(gateway: Gateway) -> None:
    info = (await gateway.client.get("/v1/models")).json()["data"][0]
    prompt = [5] * (info["max_model_len"] - 3)
    fields = {"sampling_params": {"ignore_eos": True}}
    answer = (await gateway.post(PATH, {"token_ids": prompt, **fields})).json()
    assert len(answer["choices"][0]["token_ids"]) == 3


async def test_a_proposer_is_chosen_as_everywhere(gateway: Gateway) -> None:
    response = await gateway.post(PATH, body(spec_decode={"proposer": "ngram"}))
    assert response.headers["x-specgate-spec-method"] == "ngram"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [2**40]}, "token_ids"),
        ({"token_ids": "text"}, "token_ids"),
        ({"token_ids": [5] * 5000}, "token_ids"),
        ({"sampling": {"temperature": 9}}, "sampling_params.temperature"),
        ({"sampling": {"max_tokens": 10**6}}, "sampling_params.max_tokens"),
        ({"sampling": {"logprobs": 1000}}, "sampling_params.logprobs"),
        ({"sampling": {"echo": True}}, "sampling_params.echo"),
        ({"sampling": {"suffix": "x"}}, "sampling_params.suffix"),
        ({"spec_decode": {"proposer": "none-such"}}, "spec_decode.proposer"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens"),
        ({"features": {"a": 1}}, "features"),
        ({"content_parts": [{}]}, "content_parts"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ({"output_mode": "audio"}, "output_mode"),
    ],
)
async def test_a_fault_names_its_field(
    gateway: Gateway, fields: dict[str, Any], param: str
) -> None:
    response = await gateway.post(PATH, body(**fields))
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
