"""Tools in `POST /v1/chat/completions`: forced calls, calls by choice, reasoning."""

import json
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

from engine_adapter.seam.types import GenerationRequest
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, events
from tests.server.tool_bodies import (
    ANSWERS,
    AUTO,
    NAMED,
    SCHEMAS,
    TOOLS,
    WEATHER,
    allowed,
    tool,
)


@pytest.fixture
async def choosing(start: StartGateway) -> Gateway:
    """A server with parsers, and scripted answers."""
    arguments = {"fake_answers": ANSWERS}
    return await start(**AUTO, reasoning_parser="deepseek_r1", engine_args=arguments)


def calls_of(message: dict[str, Any]) -> list[tuple[str, Any]]:
    """Name and arguments of each call of a message."""
    for call in message.get("tool_calls", ()):
        assert set(call) == {"id", "type", "function"}
        assert call["type"] == "function"
        assert call["id"].startswith("call_")
    functions = [call["function"] for call in message.get("tool_calls", ())]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


def streamed(chunks: Sequence[dict[str, Any]], index: int = 0) -> tuple[dict[str, Any], str]:
    """The message that a stream's chunks make, and its finish reason. Checks OpenAI's format."""
    choices = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    first, *rest = choices
    assert first["delta"]["role"] == "assistant"
    message: dict[str, Any] = {"content": first["delta"]["content"], "tool_calls": []}
    calls = message["tool_calls"]
    for choice in rest:
        delta = choice["delta"]
        assert len([name for name in delta if name != "reasoning"]) <= 1
        if "content" in delta:
            message["content"] = (message["content"] or "") + delta["content"]
        if "reasoning_content" in delta:
            assert delta["reasoning"] == delta["reasoning_content"]
            text = message.get("reasoning_content", "") + delta["reasoning_content"]
            message["reasoning_content"] = text
        for fragment in delta.get("tool_calls", ()):
            if fragment["index"] == len(calls):
                assert set(fragment) == {"index", "id", "type", "function"}
                assert fragment["function"]["arguments"] == ""
                begun = {key: value for key, value in fragment.items() if key != "index"}
                calls.append({**begun, "function": dict(fragment["function"])})
            else:
                assert set(fragment) == {"index", "function"}
                assert set(fragment["function"]) == {"arguments"}
                arguments = fragment["function"]["arguments"]
                calls[fragment["index"]]["function"]["arguments"] += arguments
    assert [choice["finish_reason"] for choice in rest[:-1]] == [None] * (len(rest) - 1)
    return message, rest[-1]["finish_reason"]


@pytest.mark.parametrize("parallel", [None, True, False])
async def test_required_calls_fit_the_schemas_whole_and_streamed(
    gateway: Gateway, parallel: bool | None
) -> None:
    names, counts = set(), set()
    for seed in range(12):
        asked = {
            "tools": TOOLS,
            "tool_choice": "required",
            "parallel_tool_calls": parallel,
            "seed": seed,
        }
        (choice,) = (await gateway.chat(**asked)).json()["choices"]
        message = choice["message"]
        assert (message["content"], message["refusal"]) == (None, None)
        assert choice["finish_reason"] == "tool_calls"
        calls = calls_of(message)
        for name, arguments in calls:
            jsonschema.validate(arguments, SCHEMAS[name])
        assert len({call["id"] for call in message["tool_calls"]}) == len(calls)
        names |= {name for name, _ in calls}
        counts.add(len(calls))
        rebuilt, reason = streamed(events(await gateway.chat(stream=True, **asked)))
        assert (calls_of(rebuilt), rebuilt["content"], reason) == (calls, None, "tool_calls")
    assert names == set(SCHEMAS)
    assert counts == ({1} if parallel is False else {1, 2, 3})


async def test_a_named_call_has_the_reason_stop_as_at_openai(gateway: Gateway) -> None:
    for stream in (False, True):
        response = await gateway.chat(tools=TOOLS, tool_choice=NAMED, stream=stream, seed=1)
        if stream:
            message, reason = streamed(events(response))
        else:
            choice = response.json()["choices"][0]
            message, reason = choice["message"], choice["finish_reason"]
        ((name, arguments),) = calls_of(message)
        assert (name, message["content"], reason) == ("get_weather", None, "stop")
        jsonschema.validate(arguments, WEATHER)


async def test_a_tool_without_parameters_has_none(gateway: Gateway) -> None:
    for empty in ({}, None):
        choice = {"type": "function", "function": {"name": "now"}}
        response = await gateway.chat(tools=[tool("now", empty)], tool_choice=choice)
        assert calls_of(response.json()["choices"][0]["message"]) == [("now", {})]


async def test_a_call_that_the_limit_cuts_is_partial(gateway: Gateway) -> None:
    asked = {"tools": TOOLS[:1], "tool_choice": "required", "seed": 1}
    whole = (await gateway.chat(**asked)).json()
    (call, *_) = whole["choices"][0]["message"]["tool_calls"]
    cut = 0
    for limit in range(1, whole["usage"]["completion_tokens"]):
        (choice,) = (await gateway.chat(max_tokens=limit, **asked)).json()["choices"]
        assert choice["finish_reason"] == "length"
        assert not choice["message"]["content"]
        for partial in choice["message"].get("tool_calls", ())[:1]:
            cut += 1
            assert partial["function"]["name"] == "get_weather"
            assert call["function"]["arguments"].startswith(partial["function"]["arguments"])
    assert cut


async def test_a_stop_string_that_cuts_a_call_is_told(gateway: Gateway) -> None:
    for choice in ("required", NAMED):
        asked = {"tools": TOOLS[:1], "tool_choice": choice, "stop": '"unit"', "seed": 1}
        (got,) = (await gateway.chat(**asked)).json()["choices"]
        assert (got["finish_reason"], got["stop_reason"]) == ("stop", '"unit"')
        arguments = got["message"]["tool_calls"][0]["function"]["arguments"]
        assert arguments.startswith('{"city":')
        assert arguments.endswith(",")


async def test_choices_logprobs_statistics_and_predictions_go_with_tools(gateway: Gateway) -> None:
    asked: dict[str, Any] = {
        "tools": TOOLS,
        "tool_choice": "required",
        "n": 3,
        "seed": 5,
        "logprobs": True,
        "top_logprobs": 1,
        "prediction": {"type": "content", "content": '[{"name":"now"'},
    }
    whole = (await gateway.chat(**asked)).json()
    chunks = events(await gateway.chat(stream=True, **asked))
    assert chunks[-1]["metrics"]["speculative_decoding"]["proposer"] == "prediction"
    assert whole["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
    assert "accepted_prediction_tokens" in whole["usage"]["completion_tokens_details"]
    tokens = 0
    for choice in whole["choices"]:
        index = choice["index"]
        message, reason = streamed(chunks, index)
        assert calls_of(message) == calls_of(choice["message"])
        assert reason == choice["finish_reason"] == "tool_calls"
        assert choice["speculative_decoding"]["num_spec_steps"] > 0
        of_chunks = [
            entry
            for chunk in chunks
            for part in chunk["choices"]
            if part["index"] == index and part["logprobs"]
            for entry in part["logprobs"]["content"]
        ]
        assert of_chunks == choice["logprobs"]["content"]
        tokens += len(of_chunks)
    assert tokens == whole["usage"]["completion_tokens"]
    assert len({json.dumps(calls_of(c["message"])) for c in whole["choices"]}) > 1


async def test_chunks_carry_usage_and_statistics_if_asked(gateway: Gateway) -> None:
    options = {
        "include_usage": True,
        "continuous_usage_stats": True,
        "continuous_spec_stats": True,
    }
    asked = {"tools": TOOLS, "tool_choice": "required", "stream": True, "stream_options": options}
    *chunks, last = events(await gateway.chat(**asked))
    _, *calls = chunks
    assert all(chunk["usage"]["prompt_tokens"] for chunk in chunks)
    assert all("speculative_decoding" in chunk["choices"][0] for chunk in calls)
    assert last["metrics"]["speculative_decoding"]["num_spec_steps"]


async def test_a_response_format_is_that_of_the_text_so_forced_calls_have_their_own(
    gateway: Gateway,
) -> None:
    wrapped = {"name": "a", "schema": {"type": "object"}}
    asked = {"tools": TOOLS, "response_format": {"type": "json_schema", "json_schema": wrapped}}
    for choice in ("required", NAMED):
        message = (await gateway.chat(tool_choice=choice, **asked)).json()["choices"][0]["message"]
        assert message["tool_calls"]
    answer = (await gateway.chat(tool_choice="none", **asked)).json()["choices"][0]
    assert json.loads(answer["message"]["content"]) == {}
    assert answer["finish_reason"] == "stop"


async def test_tools_change_the_prompt_and_none_leaves_the_text_alone(gateway: Gateway) -> None:
    without = (await gateway.chat(max_tokens=4)).json()["usage"]["prompt_tokens"]
    body = (await gateway.chat(max_tokens=4, tools=TOOLS, tool_choice="none")).json()
    assert body["usage"]["prompt_tokens"] > without + 20
    assert body["choices"][0]["message"]["content"]
    assert "tool_calls" not in body["choices"][0]["message"]
    counted = await gateway.post(
        "/tokenize", {"messages": [{"role": "user", "content": "Say hello."}], "tools": TOOLS}
    )
    assert counted.json()["count"] == body["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"tool_call_parser": "none"}, "it is turned off. --tool-call-parser names one"),
        ({"enable_auto_tool_choice": False}, "is turned off by --no-enable-auto-tool-choice"),
    ],
)
async def test_auto_without_a_parser_is_a_400_that_names_the_flag(
    start: StartGateway, settings: dict[str, Any], reason: str
) -> None:
    gateway = await start(**settings)
    for choice in ({}, {"tool_choice": "auto"}):
        response = await gateway.chat(tools=TOOLS, **choice)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "tool_choice")
        assert reason in error["message"]
    assert (await gateway.chat(max_tokens=2, tool_choice="auto", tools=[])).status_code == 200


async def test_auto_works_without_any_flag(gateway: Gateway) -> None:
    body = (await gateway.chat(tools=TOOLS, max_tokens=4)).json()
    assert body["choices"][0]["message"]["content"]
    assert "tool_calls" not in body["choices"][0]["message"]


CHOSEN: list[tuple[str, str | None, str | None, list[tuple[str, Any]]]] = [
    ("one call", "Well. ", None, [("get_weather", {"city": "Bonn"})]),
    ("two calls", None, None, [("now", {}), ("get-stock", {"unit": True})]),
    ("no call", "Just 5 < 6.", None, []),
    ("thinking", "Then that.", "First, <b>this</b>.", []),
    ("think and call", None, "I look.", [("now", {})]),
]
"""A prompt with its answer's text, reasoning and calls."""


@pytest.mark.parametrize(("prompt", "text", "reasoning", "calls"), CHOSEN)
async def test_the_model_chooses(
    choosing: Gateway,
    prompt: str,
    text: str | None,
    reasoning: str | None,
    calls: list[tuple[str, Any]],
) -> None:
    body = (await choosing.chat(prompt, tools=TOOLS)).json()
    (choice,) = body["choices"]
    message = choice["message"]
    assert (message["content"], calls_of(message)) == (text, calls)
    assert message.get("reasoning_content") == message.get("reasoning") == reasoning
    assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    rebuilt, reason = streamed(events(await choosing.chat(prompt, tools=TOOLS, stream=True)))
    assert (rebuilt["content"] or None, calls_of(rebuilt)) == (text, calls)
    assert rebuilt.get("reasoning_content") == reasoning
    assert reason == choice["finish_reason"]
    counted = body["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < counted < body["usage"]["completion_tokens"] if reasoning else counted == 0


async def test_one_call_is_the_limit_without_parallel_calls(choosing: Gateway) -> None:
    for stream in (False, True):
        response = await choosing.chat(
            "two calls", tools=TOOLS, parallel_tool_calls=False, stream=stream
        )
        message = (
            streamed(events(response))[0] if stream else response.json()["choices"][0]["message"]
        )
        assert calls_of(message) == [("now", {})]


async def test_the_model_sees_the_allowed_tools_only(
    choosing: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[list[str]] = []
    encode = choosing.runtime.renderer.encode_chat

    async def recorded(messages: Any, *, tools: Any = (), **fields: Any) -> tuple[int, ...]:
        shown.append([tool["function"]["name"] for tool in tools])
        return await encode(messages, tools=tools, **fields)

    monkeypatch.setattr(choosing.runtime.renderer, "encode_chat", recorded)
    for mode, reason in (("auto", "tool_calls"), ("required", "tool_calls")):
        choice = allowed(mode, "now")
        body = (await choosing.chat("two calls", tools=TOOLS, tool_choice=choice)).json()
        assert body["choices"][0]["finish_reason"] == reason
        assert "now" in [name for name, _ in calls_of(body["choices"][0]["message"])]
    assert shown == [["now"]] * 2


async def test_without_tools_or_with_none_a_call_is_text(choosing: Gateway) -> None:
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        (choice,) = (await choosing.chat("two calls", **fields)).json()["choices"]
        assert choice["message"]["content"] == ANSWERS["two calls"]
        assert choice["finish_reason"] == "stop"


async def test_reasoning_ends_after_its_budget(choosing: Gateway) -> None:
    def answer(response: Any) -> tuple[str, str]:
        message = response.json()["choices"][0]["message"]
        return message["reasoning_content"], message["content"]

    reasoning, text = answer(await choosing.chat("thinking"))
    for budget in (None, -1, 100):
        response = await choosing.chat("thinking", thinking_token_budget=budget)
        assert answer(response) == (reasoning, text)
    shorter, same_text = answer(await choosing.chat("thinking", thinking_token_budget=1))
    assert reasoning.startswith(shorter)
    assert (len(shorter) < len(reasoning), same_text) == (True, text)


async def test_reasoning_can_be_left_out(choosing: Gateway) -> None:
    for stream in (False, True):
        response = await choosing.chat("thinking", include_reasoning=False, stream=stream)
        message = (
            streamed(events(response))[0] if stream else response.json()["choices"][0]["message"]
        )
        assert message["content"] == "Then that."
        assert "reasoning_content" not in message
    for field in ("logprobs", "return_token_ids"):
        response = await choosing.chat("thinking", include_reasoning=False, **{field: True})
        assert response.json()["error"]["param"] == "include_reasoning"


async def test_template_variables_and_earlier_calls_reach_the_engine(
    choosing: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    engine = choosing.engine
    generate, parsing = engine.generate, engine.parsing

    def spied(request: GenerationRequest) -> Any:
        seen.append(request.template_variables)
        return generate(request)

    def spied_parsing(request: Any) -> Any:
        seen.append((request.template_variables, request.num_earlier_calls, len(request.tools)))
        return parsing(request)

    monkeypatch.setattr(engine, "generate", spied)
    monkeypatch.setattr(engine, "parsing", spied_parsing)
    called = {"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "no call"},
        {"role": "assistant", "tool_calls": [called, called]},
        {"role": "tool", "tool_call_id": "a", "content": "5"},
    ]
    variables = {"enable_thinking": False}
    body = {"messages": messages, "tools": TOOLS, "chat_template_kwargs": variables}
    response = await choosing.post("/v1/chat/completions", body)
    assert response.status_code == 200
    assert seen == [(variables, 2, 3), variables]


async def test_text_that_the_parser_cannot_read_is_text_of_the_answer(
    choosing: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    for stream in (False, True):
        response = await choosing.chat("broken call", tools=TOOLS, stream=stream)
        if stream:
            message, reason = streamed(events(response))
        else:
            choice = response.json()["choices"][0]
            message, reason = choice["message"], choice["finish_reason"]
        assert message["content"] == "Well. <tool_call>{now}</tool_call> So."
        assert calls_of(message) == [("now", {})]
        assert reason == "stop"
    for cause, count in (("error", 2), ("time", 0)):
        assert choosing.sample("specgate_parser_failures_total", reason=cause) == count
    assert "{now}" not in caplog.text
