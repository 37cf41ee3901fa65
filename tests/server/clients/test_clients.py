"""LangChain, pydantic-ai, instructor, the Agents SDK and Haystack, each from its own package.

The fake engine answers with instances of the schemas, and with scripted calls where the model
chooses. `tests/e2e/test_clients.py` asks the demo for the former.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.clients.packages import PACKAGES, check_forced, tell
from tests.server.threaded import ThreadedServer

pytestmark = pytest.mark.prove

Tell = Callable[[str, str], dict[str, Any]]


def call(name: str, **arguments: str) -> str:
    """The text of a model that calls a tool."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


ANSWERS = {
    "the report says": '<think>It rains.</think>{"sky": "rain"}',
    "Report the sky": call("get_report", place="Bonn"),
    "<tool_response>": "<think>I see.</think>It rains.",
    "How is the weather": call("get_weather", city="Bonn"),
    "What time": call("now"),
    "Speak French, please": call("transfer_to_french"),
}
"""A part of a prompt -> the answer; the first part that the prompt has decides."""


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedServer]:
    """A server whose model calls tools and reasons."""
    running = ThreadedServer(
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
        reasoning_parser="deepseek_r1",
        engine_args={"fake_length": 20, "fake_answers": ANSWERS},
    ).start()
    yield running
    running.stop()


@pytest.fixture
def told(server: ThreadedServer, pytestconfig: pytest.Config, tmp_path: Path) -> Tell:
    """Runs a part of a client's program."""
    return lambda client, part: tell(pytestconfig, tmp_path, client, server.url, part)


@pytest.mark.parametrize("client", PACKAGES)
def test_calls_and_formats_become_the_clients_objects(told: Tell, client: str) -> None:
    check_forced(client, told(client, "forced"))


def test_an_agent_of_langchain_calls_a_tool_and_answers(told: Tell) -> None:
    loop = [
        ["HumanMessage", "How is the weather?"],
        ["AIMessage", ""],
        ["ToolMessage", "rain in Bonn"],
        ["AIMessage", "It rains."],
    ]
    want = {"loop": loop, "streamed": loop, "typed": "City"}
    assert told("langchain", "chosen") == {"chat": want, "responses": want}


def test_an_agent_of_pydantic_ai_calls_a_tool_and_answers(told: Tell) -> None:
    apis = told("pydantic-ai", "chosen")
    for api in apis.values():
        parts = ["UserPromptPart", "ToolCallPart", "ToolReturnPart", "ThinkingPart", "TextPart"]
        assert api["loop"] == parts
        assert api["answers"] == ["It rains.", "It rains."]
        assert api["result"] == "rain in Bonn"
        assert api["typed"] == "City"
    # Only of chats: of a response, this version of pydantic-ai has a thought without text.
    assert apis["OpenAIChatModel"]["thoughts"] == ["I see."]


@pytest.mark.parametrize("client", ["langchain", "pydantic-ai", "openai-agents"])
def test_an_agent_with_a_tool_answers_in_a_format(told: Tell, client: str) -> None:
    apis = told(client, "beside")
    assert len(apis) == 2
    assert list(apis.values()) == [{"sky": ["rain", "rain"], "called": True}] * 2


def test_agents_of_the_sdk_call_a_tool_and_hand_over(told: Tell) -> None:
    apis = told("openai-agents", "chosen")
    assert set(apis) == {"default", "chat"}
    said = ["reasoning_item_created", "message_output_created"]
    for api in apis.values():
        items = ["ToolCallItem", "ToolCallOutputItem", "ReasoningItem", "MessageOutputItem"]
        assert api["tool"] == ["It rains.", items]
        assert api["tool streamed"] == ["It rains.", "a", ["tool_called", "tool_output", *said]]
        assert api["handoff"] == ["It rains.", "french"]
        # The second name is spelled so in the SDK.
        handed = ["handoff_requested", "handoff_occured", *said]
        assert api["handoff streamed"] == ["It rains.", "french", handed]
        assert api["session"] == 4


def test_runs_of_the_agents_sdk_join_a_conversation_of_the_server(told: Tell) -> None:
    turn = ["message", "function_call", "function_call_output", "reasoning", "message"]
    types = told("openai-agents", "conversation")["default"]
    assert types["joined"][:5] == types["session"][:5] == turn
    assert types["joined"] == types["session"]


KEEPS: dict[str, dict[str, tuple[str, ...]]] = {
    "langchain": {
        "chat whole": ("usage", "headers"),
        "chat streamed": (),
        "responses whole": ("headers",),
        "responses streamed": (),
    },
    "pydantic-ai": {
        "OpenAIChatModel whole": ("usage", "headers"),
        "OpenAIChatModel streamed": ("usage",),
        "OpenAIResponsesModel whole": ("headers",),
        "OpenAIResponsesModel streamed": (),
    },
    "openai-agents": {
        "default whole": ("usage", "headers"),
        "default streamed": ("usage",),
        "chat whole": ("headers",),
        "chat streamed": (),
    },
    "haystack": {
        "chat whole": ("usage",),
        "chat streamed": ("usage",),
        "responses whole": ("usage",),
        "responses streamed": ("usage",),
    },
}
"""Client -> its answers -> where it keeps the acceptance figures."""


@pytest.mark.parametrize("client", KEEPS)
def test_the_acceptance_figures_reach_the_client(
    server: ThreadedServer, told: Tell, client: str
) -> None:
    body = {"messages": [{"role": "user", "content": "word"}], "temperature": 0}
    answer = httpx.post(
        f"{server.url}/v1/chat/completions", json=body | {"spec_decode": {"proposer": "ngram"}}
    ).json()
    metrics = answer["metrics"]["speculative_decoding"]
    figures = [metrics["num_draft_tokens"], metrics["num_accepted_draft_tokens"]]
    assert 0 < figures[1] < figures[0]
    before = counted(server)
    apis = told(client, "figures")
    found = {
        f"{api} {kind}": places for api, kinds in apis.items() for kind, places in kinds.items()
    }
    assert found == {
        name: {place: figures if place in places else None for place in ("usage", "headers")}
        for name, places in KEEPS[client].items()
    }
    # What a client drops is in the metrics all the same.
    grown = [after - earlier for after, earlier in zip(counted(server), before, strict=True)]
    assert grown == [len(found) * figure for figure in figures]


def counted(server: ThreadedServer) -> list[float]:
    """The drafted and the accepted tokens of all requests with the proposer."""
    names = (
        "specgate_spec_decode_draft_tokens_total",
        "specgate_spec_decode_accepted_tokens_total",
    )
    samples = [server.registry.get_sample_value(name, {"proposer": "ngram"}) for name in names]
    return [sample or 0.0 for sample in samples]
