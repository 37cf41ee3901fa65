"""`POST /v1/responses`: its fields, its body and its events."""

from typing import Any

import pytest

from tests.server.conftest import StartGateway
from tests.server.gateway import MODEL, Gateway
from tests.server.response_events import LIFECYCLE, checked, checked_events, kinds, text_of

PATH = "/v1/responses"
SHORT: dict[str, Any] = {"input": "Say hello.", "max_output_tokens": 12, "temperature": 0}


async def respond(gateway: Gateway, **fields: Any) -> dict[str, Any]:
    """The body of a response, which must be one of OpenAI's."""
    response = await gateway.post(PATH, {**SHORT, **fields})
    assert response.status_code == 200, response.text
    return checked(response.json())


async def stream(gateway: Gateway, **fields: Any) -> list[dict[str, Any]]:
    """The events of a response."""
    response = await gateway.post(PATH, {**SHORT, "stream": True, **fields})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return checked_events(response.text)


async def test_a_response_has_openais_fields(gateway: Gateway) -> None:
    body = await respond(gateway)
    assert body["id"].startswith("resp_")
    assert (body["object"], body["model"]) == ("response", MODEL)
    assert (body["status"], body["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert body["error"] is None
    (item,) = body["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "incomplete")
    assert item["id"].startswith("msg_")
    (part,) = item["content"]
    assert part == {"type": "output_text", "text": part["text"], "annotations": [], "logprobs": []}
    usage = body["usage"]
    assert usage["output_tokens"] == 12
    assert usage["total_tokens"] == usage["input_tokens"] + 12
    assert usage["input_tokens_details"] == {"cache_write_tokens": 0, "cached_tokens": 0}
    drafted = body["metrics"]["speculative_decoding"]["num_draft_tokens"]
    assert usage["output_tokens_details"]["num_draft_tokens"] == drafted > 0


async def test_the_request_is_repeated_with_its_defaults(gateway: Gateway) -> None:
    body = await respond(gateway)
    assert {name: body[name] for name in ("temperature", "top_p", "truncation", "store")} == {
        "temperature": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "store": True,
    }
    assert (body["tools"], body["tool_choice"], body["parallel_tool_calls"]) == ([], "auto", True)
    assert body["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    assert (body["metadata"], body["instructions"]) == ({}, None)
    given: dict[str, Any] = {
        "metadata": {"a": "b"},
        "instructions": "Be brief.",
        "top_p": 0.5,
        "temperature": 0.7,
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "max_tool_calls": 3,
        "parallel_tool_calls": False,
        "truncation": "auto",
    }
    body = await respond(gateway, **given, store=False)
    assert {name: body[name] for name in given} == given
    assert body["store"] is False


async def test_a_response_that_ends_by_itself_is_completed(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_length": 4})
    body = await respond(gateway, max_output_tokens=100)
    assert (body["status"], body["incomplete_details"]) == ("completed", None)
    assert body["output"][0]["status"] == "completed"
    assert body["completed_at"] >= body["created_at"]


async def test_the_text_is_that_of_the_chat(gateway: Gateway) -> None:
    body = await respond(gateway, instructions="Be brief.")
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Say hello."},
    ]
    chat = {"messages": messages, "max_tokens": 12, "temperature": 0}
    answer = (await gateway.post("/v1/chat/completions", chat)).json()
    assert text_of(body) == answer["choices"][0]["message"]["content"]
    assert body["usage"]["input_tokens"] == answer["usage"]["prompt_tokens"]


async def test_items_are_the_messages_of_the_chat(gateway: Gateway) -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Say hello."}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]},
        {"role": "user", "content": "Again."},
    ]
    body = await respond(gateway, input=items)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Say hello."},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Again."},
    ]
    chat = {"messages": messages, "max_tokens": 12, "temperature": 0}
    answer = (await gateway.post("/v1/chat/completions", chat)).json()
    assert text_of(body) == answer["choices"][0]["message"]["content"]


async def test_events_come_in_openais_order_and_make_the_whole_response(gateway: Gateway) -> None:
    events = await stream(gateway)
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]
    begun, ended = events[0]["response"], events[-1]["response"]
    assert events[1]["response"] == begun
    assert (begun["status"], begun["output"], begun["usage"]) == ("in_progress", [], None)
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    assert len(deltas) > 1
    whole = await respond(gateway)
    assert "".join(delta["delta"] for delta in deltas) == text_of(ended) == text_of(whole)
    own = ("id", "created_at", "output", "usage", "completed_at")
    assert {k: v for k, v in ended.items() if k not in own} == {
        k: v for k, v in whole.items() if k not in own
    }
    assert ended["usage"]["output_tokens"] == 12
    assert [event["item"] for event in events if "item" in event][-1:] == ended["output"]
    assert {delta["item_id"] for delta in deltas} == {ended["output"][0]["id"]}


async def test_a_stream_that_ends_by_itself_is_completed(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_length": 4})
    *_, last = await stream(gateway, max_output_tokens=100)
    assert last["type"] == "response.completed"
    assert last["response"]["status"] == "completed"


async def test_statistics_and_the_choice_of_a_proposer_are_those_of_a_chat(
    gateway: Gateway,
) -> None:
    for fields, wanted in (
        ({}, ("draft", 4)),
        ({"spec_decode": {"proposer": "ngram", "num_speculative_tokens": 3}}, ("ngram", 3)),
        ({"speculative_model": "suffix", "num_speculative_tokens": 2}, ("suffix", 2)),
        ({"speculative_model": "none"}, ("none", 0)),
    ):
        response = await gateway.post(PATH, {**SHORT, **fields})
        assert response.headers["x-specgate-spec-method"] == wanted[0]
        told = response.json()["metrics"]["speculative_decoding"]
        assert (told["proposer"], told["num_spec_tokens"]) == wanted
        last = (await stream(gateway, **fields))[-1]["response"]
        assert last["metrics"]["speculative_decoding"] == told


async def test_statistics_of_every_delta(gateway: Gateway) -> None:
    events = await stream(gateway, stream_options={"continuous_spec_stats": True})
    told = [e["speculative_decoding"] for e in events if e["type"].endswith("text.delta")]
    steps = [one["num_spec_steps"] for one in told]
    assert len(steps) > 2
    assert steps == sorted(steps)


async def test_log_probabilities_are_in_the_text_and_its_events(gateway: Gateway) -> None:
    fields: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    body = await respond(gateway, **fields)
    told = body["output"][0]["content"][0]["logprobs"]
    assert len(told) == 12
    assert {len(one["top_logprobs"]) for one in told} == {2}
    assert body["top_logprobs"] == 2
    events = await stream(gateway, **fields)
    streamed = [p for e in events if e["type"].endswith("text.delta") for p in e["logprobs"]]
    assert streamed == told[: len(streamed)]
    assert len(streamed) >= 11
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == told
    body = await respond(gateway, include=["message.output_text.logprobs"])
    assert [len(p["top_logprobs"]) for p in body["output"][0]["content"][0]["logprobs"]] == [0] * 12


async def test_the_sampling_fields_of_a_chat_are_taken(gateway: Gateway) -> None:
    sampled = [text_of(await respond(gateway, temperature=1, seed=seed)) for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]
    whole = text_of(await respond(gateway))
    stop = whole[len(whole) // 2 :][:3]
    stopped = await respond(gateway, stop=[stop])
    assert text_of(stopped) == whole[: whole.index(stop)]
    assert stopped["status"] == "completed"


async def test_neutral_values_that_clients_send_by_themselves_are_accepted(
    gateway: Gateway,
) -> None:
    plain = await respond(gateway)
    body = await respond(
        gateway,
        background=False,
        conversation=None,
        prompt=None,
        n=1,
        service_tier="auto",
        include=["reasoning.encrypted_content"],
        reasoning={"effort": None, "summary": "auto"},
        text={"format": {"type": "text"}, "verbosity": "medium"},
        tools=[],
        tool_choice="auto",
        moderation=None,
        context_management=None,
        top_logprobs=0,
    )
    assert (body["status"], text_of(body)) == (plain["status"], text_of(plain))


async def test_unknown_fields_are_listed_in_the_header(gateway: Gateway) -> None:
    response = await gateway.post(PATH, {**SHORT, "shoe_size": 44})
    assert response.headers["x-specgate-ignored-fields"] == "shoe_size"


async def test_ignored_fields_have_the_responses_own_names(gateway: Gateway) -> None:
    header = "x-specgate-ignored-fields"
    nested = {"text": {"verbosity": "low"}, "reasoning": {"effort": "high"}}
    response = await gateway.post(PATH, {**SHORT, **nested})
    assert response.headers[header] == "text.verbosity, reasoning.effort"
    response = await gateway.post(PATH, {**SHORT, "verbosity": "low"})
    assert response.headers[header] == "verbosity"


async def test_what_is_asked_of_the_reasoning_is_repeated(gateway: Gateway) -> None:
    asked = {"effort": "low", "summary": "auto"}
    body = (await gateway.post(PATH, {**SHORT, "reasoning": asked})).json()
    assert checked(body)["reasoning"] == asked


async def test_strict_fields_refuse_an_unknown_one(start: StartGateway) -> None:
    gateway = await start(strict_fields=True)
    error = (await gateway.post(PATH, {**SHORT, "shoe_size": 44})).json()["error"]
    assert (error["param"], error["code"]) == ("shoe_size", "unknown_parameter")
    error = (await gateway.post(PATH, {**SHORT, "max_output_token": 1})).json()["error"]
    assert error["message"].endswith("did you mean max_output_tokens?")


async def test_routing_rules_match_responses(start: StartGateway) -> None:
    rule = {"name": "cold", "match": {"temperature": {"max": 0.1}}, "use": {"proposer": "suffix"}}
    gateway = await start(routing_rules=[rule])
    assert (await gateway.post(PATH, SHORT)).headers["x-specgate-spec-method"] == "suffix"


async def test_a_response_is_counted_as_in_flight_and_in_the_metrics(
    start: StartGateway,
) -> None:
    gateway = await start(engine_args={"fake_step_ms": 1})
    during: list[int] = []
    exchange = gateway.exchange(
        PATH,
        {**SHORT, "stream": True},
        on_send=lambda _: during.append(len(gateway.runtime.switcher.in_flight)),
    )
    await exchange.begin()
    assert during[0] == 1
    assert len(gateway.runtime.switcher.in_flight) == 0
    labels = {"route": PATH, "method": "POST", "status": "200"}
    assert gateway.sample("specgate_http_requests_total", **labels) == 1


@pytest.mark.parametrize("ending", LIFECYCLE[:2])
async def test_the_response_is_whole_in_the_events_of_its_beginning(
    gateway: Gateway, ending: str
) -> None:
    events = await stream(gateway, metadata={"a": "b"})
    (event,) = [e for e in events if e["type"] == f"response.{ending}"]
    assert checked(event["response"])["metadata"] == {"a": "b"}
