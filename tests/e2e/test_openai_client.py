"""OpenAI's own Python client against the real engine."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel

from tests.cases import proved_beyond
from tests.e2e.served import MODEL, PROPOSERS, Served

pytestmark = pytest.mark.engine

MESSAGES: Any = [{"role": "user", "content": "Write a function `parse_date`: read a date."}]
PROMPT = "def parse_date(text):"
GREEDY: dict[str, Any] = {"model": MODEL, "max_tokens": 32, "temperature": 0}


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    served.switch("draft")
    transport: Any = httpx.Client(trust_env=False, timeout=120)
    url = f"{served.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, http_client=transport) as made:
        yield made


def statistics(answer: Any) -> dict[str, Any]:
    """The statistics of a response or a chunk."""
    told: dict[str, Any] = answer.metrics["speculative_decoding"]
    return told


def test_a_completion_is_the_same_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.completions.create(prompt=PROMPT, **GREEDY)
    assert whole.usage is not None
    assert whole.usage.completion_tokens <= 32
    chunks = list(
        client.completions.create(
            prompt=PROMPT, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
    )
    assert "".join(c.text for chunk in chunks for c in chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert statistics(chunks[-1])["num_spec_steps"] == statistics(whole)["num_spec_steps"]


def test_a_chat_is_the_same_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=MESSAGES, **GREEDY)
    chunks = list(client.chat.completions.create(messages=MESSAGES, stream=True, **GREEDY))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert statistics(chunks[-1])["num_draft_tokens"] == statistics(whole)["num_draft_tokens"]


def test_two_choices_have_their_own_text_and_statistics(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {**GREEDY, "temperature": 0.9, "n": 2, "seed": 11}
    whole = client.chat.completions.create(messages=MESSAGES, **asked)
    texts = [choice.message.content for choice in whole.choices]
    assert texts[0] != texts[1]
    parts = [choice.speculative_decoding for choice in whole.choices]  # type: ignore[attr-defined]
    told = statistics(whole)
    for figure in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens"):
        assert told[figure] == sum(part[figure] for part in parts)
    streamed = ["", ""]
    for chunk in client.chat.completions.create(messages=MESSAGES, stream=True, **asked):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


@pytest.mark.parametrize(
    "sampling",
    [pytest.param({"temperature": 0}, marks=pytest.mark.prove), {"temperature": 0.8, "seed": 3}],
)
def test_the_text_does_not_depend_on_the_proposer(
    client: openai.OpenAI, sampling: dict[str, Any]
) -> None:
    texts = {}
    for name, k in {**PROPOSERS, "none": 0}.items():
        raw = client.completions.with_raw_response.create(
            prompt=PROMPT, extra_body={"spec_decode": {"proposer": name}}, **(GREEDY | sampling)
        )
        assert raw.headers["x-specgate-spec-method"] == name
        answer = raw.parse()
        texts[name] = answer.choices[0].text
        told = statistics(answer)
        assert (told["proposer"], told["num_spec_tokens"]) == (name, k)
        assert set(told["by_proposer"]) <= {name}
        if name.startswith("draft"):
            assert told["num_spec_steps"] == told["by_proposer"][name]["drafts"] > 0
    assert len(set(texts.values())) == 1, texts


@pytest.mark.parametrize("name", proved_beyond(["none", "suffix", "draft"], [*PROPOSERS, "none"]))
def test_a_response_has_the_text_of_its_chat_under_every_proposer(
    client: openai.OpenAI, name: str
) -> None:
    chat = client.chat.completions.create(messages=MESSAGES, **GREEDY)
    asked: dict[str, Any] = {"model": MODEL, "input": MESSAGES, "max_output_tokens": 32}
    by_name = {"spec_decode": {"proposer": name}}
    whole = client.responses.create(**asked, temperature=0, store=False, extra_body=by_name)
    with client.responses.stream(**asked, temperature=0, store=False, extra_body=by_name) as stream:
        events = list(stream)
    last: Any = events[-1]
    assert last.type == f"response.{whole.status}"
    assert whole.output_text == last.response.output_text == chat.choices[0].message.content
    counts = statistics(whole)
    assert (counts["proposer"], counts["num_spec_tokens"]) == (name, PROPOSERS.get(name, 0))
    if name != "suffix":  # it drafts more from what it has seen before
        assert statistics(last.response)["num_draft_tokens"] == counts["num_draft_tokens"]
    if name.startswith("draft"):
        assert counts["num_accepted_draft_tokens"] > 0


class Verdict(BaseModel):
    """What a response is parsed into."""

    sorted: bool
    length: Literal[1, 2, 3]


@pytest.mark.parametrize("proposer", proved_beyond(["draft"], ["none", "ngram", "draft", "eagle3"]))
def test_a_response_is_parsed_into_a_model(client: openai.OpenAI, proposer: str) -> None:
    asked: Any = {
        "model": MODEL,
        "input": "Is the list sorted?",
        "temperature": 0,
        "max_output_tokens": 64,
        "extra_body": {"spec_decode": {"proposer": proposer}},
    }
    parsed = client.responses.parse(**asked, text_format=Verdict)
    assert parsed.status == "completed"
    assert isinstance(parsed.output_parsed, Verdict)
    plain = client.responses.parse(
        **{**asked, "extra_body": {"spec_decode": {"proposer": "none"}}}, text_format=Verdict
    )
    assert parsed.output_text == plain.output_text
    with client.responses.stream(**asked, text_format=Verdict) as stream:
        final = stream.get_final_response()
    assert final.output_parsed == parsed.output_parsed


def test_a_conversation_of_responses_is_that_of_chats(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "temperature": 0, "max_output_tokens": 24}
    first = client.responses.create(**asked, input=MESSAGES, instructions="Be brief.")
    second = client.responses.create(
        **asked, input="Now write a test.", previous_response_id=first.id
    )
    messages: Any = [
        *MESSAGES,
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "Now write a test."},
    ]
    chat = client.chat.completions.create(**{**GREEDY, "max_tokens": 24}, messages=messages)
    assert second.output_text == chat.choices[0].message.content
    assert client.responses.retrieve(second.id).output_text == second.output_text


TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "set_alarm",
            "description": "Sets an alarm.",
            "parameters": {
                "type": "object",
                "properties": {
                    "day": {"enum": ["monday", "tuesday", "wednesday"]},
                    "hour": {"type": "integer", "minimum": 0, "maximum": 23},
                    "loud": {"type": "boolean"},
                },
                "required": ["day", "hour", "loud"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "cancel"}},
]
NAMED: Any = {"type": "function", "function": {"name": "set_alarm"}}


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop")])
def test_a_forced_call_does_not_depend_on_the_proposer(
    client: openai.OpenAI, choice: Any, reason: str
) -> None:
    asked = {**GREEDY, "max_tokens": 80, "tools": TOOLS, "tool_choice": choice}
    calls, drafted = set(), {}
    for name in (*PROPOSERS, "none"):
        with client.chat.completions.stream(
            messages=MESSAGES,
            parallel_tool_calls=False,
            extra_body={"spec_decode": {"proposer": name}},
            **asked,
        ) as stream:
            *_, last = [event.chunk for event in stream if event.type == "chunk"]
            final = stream.get_final_completion().choices[0]
        assert final.finish_reason == reason
        (call,) = list(final.message.tool_calls or ())
        calls.add((call.function.name, call.function.arguments))
        told = statistics(last)
        assert told["proposer"] == name
        drafted[name] = (told["num_draft_tokens"], told["num_accepted_draft_tokens"])
    ((called, arguments),) = calls
    assert called in ("set_alarm", "cancel")
    if called == "set_alarm":
        assert set(json.loads(arguments)) == {"day", "hour", "loud"}
    assert drafted["none"] == (0, 0)
    assert sum(accepted for _, accepted in drafted.values()) > 0, drafted


def test_a_turn_with_a_tools_result_is_answered(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {**GREEDY, "max_tokens": 80, "tools": TOOLS}
    first = client.chat.completions.create(messages=MESSAGES, tool_choice=NAMED, **asked)
    message = first.choices[0].message
    (call,) = list(message.tool_calls or ())
    result = {"role": "tool", "tool_call_id": call.id, "content": "It is set."}
    history: Any = [*MESSAGES, message.model_dump(), result]
    answer = client.chat.completions.create(messages=history, tool_choice="none", **asked)
    assert answer.choices[0].message.content


def test_a_model_may_choose_tools_by_default(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(messages=MESSAGES, tools=TOOLS, **GREEDY)
    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None
    (model,) = client.models.list().data
    assert model.to_dict()["tool_call_parser"] == "hermes"


def test_a_cap_on_the_draft_is_enforced(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        prompt=PROMPT,
        extra_body={"speculative_model": "draft", "num_speculative_tokens": 2},
        **GREEDY,
    )
    told = statistics(answer)
    assert told["num_spec_tokens"] == 2
    assert 0 < told["num_draft_tokens"] <= 2 * told["num_spec_steps"]
    assert len(told["acceptance_histogram"]) == 3


def test_logprobs_and_prompts_of_every_form(client: openai.OpenAI) -> None:
    for prompts, count in (([PROMPT, "class A:"], 2), ([5, 6, 7], 1), ([[5, 6], [7]], 2)):
        answer = client.completions.create(prompt=prompts, logprobs=2, **GREEDY)  # type: ignore
        assert [choice.index for choice in answer.choices] == list(range(count))
        for choice in answer.choices:
            assert choice.logprobs is not None
            assert all(p <= 0 for p in choice.logprobs.token_logprobs or [1])


ERRORS: list[tuple[dict[str, Any], str, str | None]] = [
    (
        {"extra_body": {"spec_decode": {"proposer": "no"}}},
        "spec_decode.proposer",
        "proposer_not_found",
    ),
    ({"extra_body": {"speculative_model": "no"}}, "speculative_model", "proposer_not_found"),
    (
        {"extra_body": {"spec_decode": {"proposer": "ngram", "num_speculative_tokens": 6}}},
        "spec_decode.num_speculative_tokens",
        "num_speculative_tokens_too_large",
    ),
    ({"extra_body": {"min_p": 1.5}}, "min_p", None),
    ({"n": 0}, "n", None),
    ({"max_tokens": -1}, "max_tokens", None),
    ({"prompt": ""}, "prompt", None),
    ({"prompt": [7] * 2048}, "prompt", "context_length_exceeded"),
    ({"max_tokens": 4096}, "max_tokens", "context_length_exceeded"),
]


@pytest.mark.parametrize(("fields", "param", "code"), ERRORS)
def test_a_bad_field_is_a_400_that_names_it(
    client: openai.OpenAI, fields: dict[str, Any], param: str, code: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**({"prompt": PROMPT} | GREEDY | fields))
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.request_id


def test_an_unknown_model_is_a_404(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="no", messages=MESSAGES)
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")
    assert [model.id for model in client.models.list()] == [MODEL]
