"""Custom tools with a grammar, and responses in the background, on the real engine."""

import re
import time
from typing import Any

import openai
import pytest

from tests.e2e.served import MODEL, PROPOSERS
from tests.e2e.test_openai_client import client as client

pytestmark = [pytest.mark.engine, pytest.mark.prove]

DATE = r"^(?P<month>May|June) [0-9]{1,2}\nat \"noon\"$"
PATCH = """start: begin line end
begin: "*** Begin Patch" LF
line: /[+-][a-z]{1,5}/ LF
end: "*** End Patch"
%import common.LF
"""
ASKED: dict[str, Any] = {"model": MODEL, "input": "Write a function.", "temperature": 0}


def tool(syntax: str, definition: str) -> Any:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": "robot", "format": form}


@pytest.mark.parametrize(("syntax", "definition"), [("regex", DATE), ("lark", PATCH)])
def test_a_call_fits_its_grammar_under_every_proposer(
    client: openai.OpenAI, syntax: str, definition: str
) -> None:
    inputs = set()
    for name in (*PROPOSERS, "none"):
        response = client.responses.create(
            **ASKED,
            max_output_tokens=100,
            tools=[tool(syntax, definition)],
            tool_choice={"type": "custom", "name": "robot"},
            extra_body={"spec_decode": {"proposer": name}},
        )
        (item,) = response.output
        assert item.type == "custom_tool_call"
        inputs.add(item.input)
    assert len(inputs) == 1
    (text,) = inputs
    pattern = r"\*\*\* Begin Patch\n[+-][a-z]{1,5}\n\*\*\* End Patch"
    assert re.fullmatch(DATE if syntax == "regex" else pattern, text)


@pytest.mark.parametrize(("syntax", "definition"), [("regex", "[0-9"), ("lark", "start: (")])
def test_a_definition_that_is_not_valid_is_refused_by_name(
    client: openai.OpenAI, syntax: str, definition: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(
            **ASKED,
            tools=[tool(syntax, definition)],
            tool_choice={"type": "custom", "name": "robot"},
            background=True,
        )
    assert caught.value.param == "tools.0.format.definition"


def test_a_response_in_the_background_has_the_text_of_another_one(client: openai.OpenAI) -> None:
    whole = client.responses.create(**ASKED, max_output_tokens=40)
    response = client.responses.create(**ASKED, max_output_tokens=40, background=True)
    while response.status in ("queued", "in_progress"):
        time.sleep(0.05)
        response = client.responses.retrieve(response.id)
    assert response.output_text == whole.output_text
    running = client.responses.create(
        **ASKED, background=True, extra_body={"ignore_eos": True}, max_output_tokens=1500
    )
    time.sleep(0.5)
    cancelled = client.responses.cancel(running.id)
    assert cancelled.status == "cancelled"
    assert cancelled.output_text
