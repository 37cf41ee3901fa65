"""A server whose model may call tools or answer in a format, on the real engine."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from tests.e2e.served import MODEL, PROPOSERS, Served

pytestmark = [pytest.mark.engine, pytest.mark.prove]

SKY: dict[str, Any] = {
    "type": "object",
    "properties": {"sky": {"enum": ["rain", "sun"]}, "sure": {"type": "boolean"}},
    "required": ["sky", "sure"],
    "additionalProperties": False,
}
PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {"place": {"enum": ["Bonn", "Ulm"]}},
    "required": ["place"],
    "additionalProperties": False,
}
TOOL = {"name": "get_report", "description": "The sky.", "parameters": PLACE, "strict": True}
TOOLS: Any = [{"type": "function", "function": TOOL}]
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "sky", "schema": SKY}}
MESSAGES: Any = [{"role": "user", "content": "Report the sky."}]


@pytest.fixture(scope="module")
def choosing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The demo with the parser of its calls."""
    log = tmp_path_factory.mktemp("choosing") / "server.log"
    flags = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    served = Served.start_beside(log, *flags)
    yield served
    assert served.stop() == 0, served.tail()
    assert "Traceback" not in served.log.read_text(errors="replace"), served.tail()


@pytest.fixture(scope="module")
def client(choosing: Served) -> Iterator[openai.OpenAI]:
    transport: Any = httpx.Client(trust_env=False, timeout=120)
    url = f"{choosing.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, http_client=transport) as made:
        yield made


def said(message: Any) -> tuple[str | None, list[tuple[str, Any]]]:
    """The text and the calls of a message. The parser writes all arguments of a call again."""
    functions = [call.function for call in message.tool_calls or ()]
    return message.content or None, [(one.name, json.loads(one.arguments)) for one in functions]


@pytest.mark.parametrize("begin", ["{", "<tool_call>"])
def test_it_is_the_same_with_every_proposer_whole_and_streamed(
    client: openai.OpenAI, choosing: Served, begin: str
) -> None:
    body = {"prompt": begin, "add_special_tokens": False}
    first = choosing.post("/tokenize", body).json()["tokens"][0]
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": MESSAGES,
        "tools": TOOLS,
        "response_format": FORMAT,
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_tokens": 64,
        "logit_bias": {str(first): 100},
    }
    found = set()
    for name in (*PROPOSERS, "none"):
        by_name = {"spec_decode": {"proposer": name}}
        whole = client.chat.completions.create(**asked, extra_body=by_name).choices[0]
        with client.chat.completions.stream(**asked, extra_body=by_name) as stream:
            streamed = stream.get_final_completion().choices[0]
        assert said(whole.message) == said(streamed.message)
        assert whole.finish_reason == streamed.finish_reason
        written = [call.function.arguments for call in streamed.message.tool_calls or ()]
        found.add(json.dumps([*said(whole.message), whole.finish_reason, written]))
    (one,) = found
    text, calls, reason, _ = json.loads(one)
    if begin == "{":
        assert (calls, reason) == ([], "stop")
        jsonschema.validate(json.loads(text), SKY)
    else:
        ((called, arguments),) = calls
        assert (text, called, reason) == (None, "get_report", "tool_calls")
        jsonschema.validate(arguments, PLACE)


def test_strict_alone_leaves_the_text_free(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "tools": TOOLS, "max_tokens": 24}
    raw = client.chat.completions.with_raw_response.create(**asked, temperature=0)
    assert "x-specgate-ignored-fields" not in raw.headers
    plain = client.chat.completions.create(**asked, temperature=0, tool_choice="none")
    assert raw.parse().choices[0].message.content == plain.choices[0].message.content


def test_a_response_has_it_too(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "input": "Report the sky.",
        "tools": [{"type": "function", **TOOL}],
        "text": {"format": {"type": "json_schema", "name": "sky", "schema": SKY}},
        "max_output_tokens": 64,
    }
    found = client.responses.create(model=MODEL, temperature=0, parallel_tool_calls=False, **asked)
    (item,) = found.output
    if item.type == "message":
        jsonschema.validate(json.loads(found.output_text), SKY)
    else:
        assert item.type == "function_call"
        jsonschema.validate(json.loads(item.arguments), PLACE)
