"""`POST /v1/completions`: shapes, prompts, sampling fields and bad input."""

from typing import Any

import pytest

from tests.server.conftest import StartGateway
from tests.server.gateway import MODEL, Gateway, events

BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"prompt": ["a", [5]]}, "prompt"),
    ({"prompt": [5, "a"]}, "prompt"),
    ({"prompt": [True, False]}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": 7}, "prompt"),
    ({"prompt": {"text": "a"}}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [2048]}, "prompt"),
    ({"prompt": [10**30]}, "prompt"),
    ({"prompt": "half a \ud800"}, "prompt"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": "2"}, "n"),
    ({"n": True}, "n"),
    ({"best_of": 3}, "best_of"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"min_tokens": 17}, "min_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "0"}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": float("inf")}, "temperature"),
    ({"top_p": -0.01}, "top_p"),
    ({"top_p": 1.01}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": ["a", 5]}, "stop.1"),
    ({"stop": "\ud800"}, "stop"),
    ({"stop_token_ids": [2048]}, "stop_token_ids"),
    ({"stop_token_ids": "1"}, "stop_token_ids"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include": 1}}, "stream_options.include"),
    (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
    ),
    ({"model": 5}, "model"),
]
"""Refused fields, and the field that the error names."""


async def test_a_response_has_openais_format(gateway: Gateway) -> None:
    response = await gateway.complete(max_tokens=5)
    body = response.json()
    assert response.status_code == 200
    assert body["id"].startswith("cmpl-")
    assert (body["object"], body["model"]) == ("text_completion", MODEL)
    assert isinstance(body["created"], int)
    (choice,) = body["choices"]
    assert choice["index"] == 0
    assert choice["text"]
    assert choice["logprobs"] is None
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", None)
    usage = body["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_a_stream_has_the_text_of_the_whole_response(gateway: Gateway) -> None:
    whole = (await gateway.complete(max_tokens=20, temperature=0)).json()
    chunks = events(await gateway.complete(max_tokens=20, temperature=0, stream=True))
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert [c["finish_reason"] for c in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == "length"
    assert {(c["object"], c["model"], c["id"]) for c in chunks} == {
        ("text_completion", MODEL, chunks[0]["id"])
    }
    assert all("usage" not in chunk for chunk in chunks)
    assert chunks[-1]["metrics"] == whole["metrics"]
    assert choices[-1]["speculative_decoding"] == whole["choices"][0]["speculative_decoding"]
    assert all("metrics" not in chunk for chunk in chunks[:-1])


async def test_usage_comes_last_with_no_choices(gateway: Gateway) -> None:
    options = {"include_usage": True}
    response = await gateway.complete(max_tokens=4, stream=True, stream_options=options)
    *chunks, last = events(response)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert all("metrics" not in chunk for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4
    assert "speculative_decoding" in last["metrics"]


async def test_continuous_usage_grows(gateway: Gateway) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(await gateway.complete(max_tokens=8, stream=True, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] == 8


async def test_continuous_statistics_say_who_drafted_the_tokens_of_a_chunk(
    gateway: Gateway,
) -> None:
    spec = {"proposer": "ngram", "num_speculative_tokens": 4}
    fields = {"max_tokens": 40, "temperature": 0, "logprobs": 0, "stream": True}
    options = {"continuous_spec_stats": True}
    chunks = events(await gateway.complete(**fields, spec_decode=spec, stream_options=options))
    accepted = steps = 0
    for chunk in chunks:
        (choice,) = chunk["choices"]
        counts = choice["speculative_decoding"]["by_proposer"].get("ngram", {})
        new = counts.get("accepted", 0) - accepted
        steps += counts.get("drafts", 0) > 0
        assert len(choice["logprobs"]["tokens"]) == new + 1
        accepted += new
    assert steps > 5
    assert accepted > 0
    assert "speculative_decoding" not in events(await gateway.complete(**fields))[0]["choices"][0]


@pytest.mark.parametrize("stream", [False, True])
async def test_prompts_times_n_are_numbered_prompt_by_prompt(
    gateway: Gateway, stream: bool
) -> None:
    fields = {"n": 2, "max_tokens": 6, "seed": 7, "stream": stream}
    both = await gateway.complete(["def f(x):", "import os"], **fields)
    whole = (await gateway.complete("import os", **fields | {"stream": False})).json()
    texts = ["", "", "", ""]
    if stream:
        for chunk in events(both):
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["text"]
    else:
        assert [choice["index"] for choice in both.json()["choices"]] == [0, 1, 2, 3]
        texts = [choice["text"] for choice in both.json()["choices"]]
    assert texts[2:] == [choice["text"] for choice in whole["choices"]]
    assert len(set(texts)) == 4


async def test_seed_repeats_and_choices_differ(gateway: Gateway) -> None:
    first = (await gateway.complete(n=2, seed=11, max_tokens=12)).json()["choices"]
    second = (await gateway.complete(n=2, seed=11, max_tokens=12)).json()["choices"]
    assert [c["text"] for c in first] == [c["text"] for c in second]
    assert first[0]["text"] != first[1]["text"]


async def test_the_largest_seed_works_with_several_choices(gateway: Gateway) -> None:
    response = await gateway.complete(n=2, seed=2**63 - 1, max_tokens=2)
    assert response.status_code == 200


async def test_usage_counts_each_prompt_once(gateway: Gateway) -> None:
    one = (await gateway.complete("def f(x):", max_tokens=3)).json()["usage"]
    four = (await gateway.complete(["def f(x):"] * 2, n=2, max_tokens=3)).json()["usage"]
    assert four["prompt_tokens"] == 2 * one["prompt_tokens"]
    assert four["completion_tokens"] == 12


async def test_cached_prompt_tokens_are_in_the_usage(gateway: Gateway) -> None:
    prompt = "x = 1\n" * 60
    await gateway.complete(prompt, max_tokens=2)
    usage = (await gateway.complete(prompt, max_tokens=2)).json()["usage"]
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]


async def test_text_and_its_token_ids_are_one_prompt(gateway: Gateway) -> None:
    ids = (await gateway.post("/tokenize", {"prompt": "import os"})).json()["tokens"]
    texts = {
        (await gateway.complete(prompt, temperature=0, max_tokens=9)).json()["choices"][0]["text"]
        for prompt in ("import os", ids, [ids], ["import os"])
    }
    assert len(texts) == 1


async def test_max_tokens_defaults_to_16_or_the_remaining_context(gateway: Gateway) -> None:
    assert (await gateway.complete(ignore_eos=True)).json()["usage"]["completion_tokens"] == 16
    nearly_full = [5] * (gateway.runtime.info.max_model_len - 3)
    response = await gateway.complete(nearly_full, ignore_eos=True)
    assert response.json()["usage"]["completion_tokens"] == 3


async def test_stop_string_ends_and_is_left_out(gateway: Gateway) -> None:
    text = (await gateway.complete(temperature=0, max_tokens=40)).json()["choices"][0]["text"]
    stop = text[10:14]
    choice = (await gateway.complete(temperature=0, max_tokens=40, stop=stop)).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert choice["text"] == text[: text.index(stop)]
    fields = {
        "temperature": 0,
        "max_tokens": 40,
        "stop": [stop],
        "include_stop_str_in_output": True,
    }
    kept = (await gateway.complete(**fields)).json()["choices"][0]["text"]
    assert kept == choice["text"] + stop


async def test_logprobs_have_the_sampled_token_and_offsets(gateway: Gateway) -> None:
    choice = (await gateway.complete(max_tokens=6, logprobs=2)).json()["choices"][0]
    shaped = choice["logprobs"]
    assert set(shaped) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert len(shaped["tokens"]) == 6
    for token, logprob, top in zip(
        shaped["tokens"], shaped["token_logprobs"], shaped["top_logprobs"], strict=True
    ):
        assert top[token] == logprob <= 0
        assert 2 <= len(top) <= 3
    assert shaped["text_offset"][0] == 0
    # The last token may be a part of a character, which is not text yet.
    whole = "".join(shaped["tokens"])
    assert whole.removesuffix("\ufffd") == choice["text"]
    for token, offset in zip(shaped["tokens"], shaped["text_offset"], strict=True):
        assert whole[offset:].startswith(token)


async def test_streamed_logprobs_join_to_the_whole(gateway: Gateway) -> None:
    fields: dict[str, Any] = {"max_tokens": 9, "logprobs": 1, "temperature": 0, "echo": True}
    whole = (await gateway.complete(**fields)).json()["choices"][0]
    joined: dict[str, list[Any]] = {}
    text = ""
    for chunk in events(await gateway.complete(**fields, stream=True)):
        choice = chunk["choices"][0]
        text += choice["text"]
        for key, values in choice["logprobs"].items():
            joined.setdefault(key, []).extend(values)
    assert joined == whole["logprobs"]
    assert text == whole["text"]


async def test_echo_puts_the_prompt_first(gateway: Gateway) -> None:
    plain = (await gateway.complete(temperature=0, max_tokens=5)).json()["choices"][0]["text"]
    for stream in (False, True):
        response = await gateway.complete(temperature=0, max_tokens=5, echo=True, stream=stream)
        chunks = events(response) if stream else [response.json()]
        assert "".join(c["choices"][0]["text"] for c in chunks) == "def f(x):" + plain


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_without_generation_scores_the_prompt(gateway: Gateway, stream: bool) -> None:
    fields: dict[str, Any] = {"max_tokens": 0, "echo": True, "logprobs": 1, "stream": stream}
    if stream:
        fields["stream_options"] = {"include_usage": True}
        body, last = events(await gateway.complete(**fields))
        usage = last["usage"]
    else:
        body = (await gateway.complete(**fields)).json()
        usage = body["usage"]
    (choice,) = body["choices"]
    assert choice["text"] == "def f(x):"
    assert usage["completion_tokens"] == 0
    assert choice["finish_reason"] == "length"
    shaped = choice["logprobs"]
    assert shaped["token_logprobs"][0] is None
    assert shaped["top_logprobs"][0] is None
    assert all(logprob <= 0 for logprob in shaped["token_logprobs"][1:])
    # The text was given without the bos token that the tokenizer wrote before it.
    for token, offset in list(zip(shaped["tokens"], shaped["text_offset"], strict=True))[1:]:
        assert choice["text"][offset:].startswith(token)


async def test_echo_of_token_ids_is_their_text(gateway: Gateway) -> None:
    ids = (await gateway.post("/tokenize", {"prompt": "import os"})).json()["tokens"]
    choice = (await gateway.complete(ids, max_tokens=0, echo=True, logprobs=0)).json()["choices"][0]
    assert choice["text"] == "<|bos|>import os"
    assert choice["logprobs"]["tokens"][0] == "<|bos|>"
    assert choice["logprobs"]["text_offset"][:2] == [0, 7]


async def test_bad_field_is_a_400_that_names_it(gateway: Gateway) -> None:
    for fields, param in BAD_FIELDS:
        response = await gateway.post("/v1/completions", {"prompt": "def f(x):", **fields})
        error = response.json()["error"]
        assert response.status_code == 400, (fields, error)
        assert (error["param"], error["type"]) == (param, "invalid_request_error"), fields
    assert gateway.sample("specgate_requests_total", proposer="draft", selected_by="active") == 0


async def test_too_many_sequences_are_refused_together(gateway: Gateway) -> None:
    response = await gateway.complete(["a"] * 100, n=100)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")


async def test_null_is_not_set(gateway: Gateway) -> None:
    fields = "model n best_of stream stream_options temperature top_p top_k min_tokens max_tokens"
    fields += (
        " stop stop_token_ids seed presence_penalty frequency_penalty repetition_penalty logprobs"
    )
    fields += " echo ignore_eos skip_special_tokens suffix logit_bias user spec_decode"
    fields += " speculative_model num_speculative_tokens"
    response = await gateway.complete(**dict.fromkeys(fields.split()))
    assert response.status_code == 200
    assert "x-specgate-ignored-fields" not in response.headers


@pytest.mark.parametrize("as_ids", [False, True])
async def test_prompt_longer_than_the_context(gateway: Gateway, as_ids: bool) -> None:
    length = gateway.runtime.info.max_model_len
    response = await gateway.complete([5] * length if as_ids else "word " * length)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == "prompt"


async def test_max_tokens_beyond_the_context(gateway: Gateway) -> None:
    length = gateway.runtime.info.max_model_len
    assert (await gateway.complete([5], max_tokens=length - 1)).status_code == 200
    response = await gateway.complete([5], max_tokens=length)
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")


async def test_one_bad_prompt_of_several_starts_nothing(gateway: Gateway) -> None:
    response = await gateway.complete([[5], [9999]])
    assert response.status_code == 400
    assert gateway.engine.num_running == gateway.engine.num_waiting == 0


async def test_another_model_is_a_404(gateway: Gateway) -> None:
    response = await gateway.complete(model="gpt-4")
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (404, "model_not_found")
    assert MODEL in error["message"]


async def test_every_served_name_is_answered_under_that_name(start: StartGateway) -> None:
    gateway = await start(served_model_name=("first", "second"))
    assert (await gateway.complete(model="second")).json()["model"] == "second"
    assert (await gateway.complete()).json()["model"] == "first"
