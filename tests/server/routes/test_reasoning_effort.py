"""`reasoning_effort` is a variable of the chat template, as in vLLM."""

from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway

TEMPLATE = (
    "{{ messages[0].content }}|{{ reasoning_effort | default('unset') }}"
    "|{{ enable_thinking | default('unset') }}"
)
HEADER = "x-specgate-ignored-fields"


@pytest.fixture
async def reasoning(start: StartGateway, tmp_path: Path) -> Gateway:
    """A gateway whose template knows the variables."""
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    return await start(chat_template=str(template))


async def rendered(gateway: Gateway, **fields: Any) -> str:
    messages = [{"role": "user", "content": "a"}]
    tokens = (await gateway.post("/tokenize", {"messages": messages, **fields})).json()["tokens"]
    text: str = (await gateway.post("/detokenize", {"tokens": tokens})).json()["prompt"]
    return text


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({}, "a|unset|unset"),
        ({"reasoning_effort": "low"}, "a|low|True"),
        ({"reasoning_effort": "none"}, "a|none|False"),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
            "a|low|False",
        ),
        ({"chat_template_kwargs": {"reasoning_effort": "high"}}, "a|high|unset"),
    ],
)
async def test_the_template_gets_it(reasoning: Gateway, fields: dict[str, Any], want: str) -> None:
    assert await rendered(reasoning, **fields) == want
    response = await reasoning.chat("a", max_tokens=1, return_token_ids=True, **fields)
    assert HEADER not in response.headers
    ids = response.json()["prompt_token_ids"]
    assert (await reasoning.post("/detokenize", {"tokens": ids})).json()["prompt"] == want


async def test_a_template_without_it_is_said_to_ignore_it(
    gateway: Gateway, start: StartGateway
) -> None:
    response = await gateway.chat(max_tokens=1, reasoning_effort="high")
    assert (response.status_code, response.headers[HEADER]) == (200, "reasoning_effort")
    assert HEADER not in (await gateway.chat(max_tokens=1, reasoning_effort="none")).headers
    strict = await start(strict_fields=True)
    error = (await strict.chat(reasoning_effort="high")).json()["error"]
    assert (error["param"], error["code"]) == ("reasoning_effort", "unsupported_parameter")
    assert (await strict.chat(max_tokens=1, reasoning_effort="none")).status_code == 200


async def test_an_effort_that_is_none_or_contradicts_itself_is_refused(reasoning: Gateway) -> None:
    kwargs = {"reasoning_effort": "low"}
    for fields in (
        {"reasoning_effort": "huge"},
        {"reasoning_effort": 5},
        {"reasoning_effort": "high", "chat_template_kwargs": kwargs},
    ):
        response = await reasoning.chat(**fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "reasoning_effort"
