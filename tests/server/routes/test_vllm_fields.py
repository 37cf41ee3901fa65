"""Fields and routes of vLLM's that mean here what they mean there."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from demo import model_path
from engine_adapter.seam.types import GenerationRequest
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, events, eventually

HEADER = "x-specgate-ignored-fields"
RAG = (
    "{% for d in documents or [] %}<{{ d.title }}>{{ d.text }}{% endfor %}{{ messages[0].content }}"
)
DOCUMENTS = [{"title": "a", "text": "one"}, {"title": "b", "text": "two"}]


def rag(folder: Path) -> str:
    path = folder / "rag.jinja"
    path.write_text(RAG)
    return str(path)


def named(ids: list[int]) -> list[str]:
    return [f"token_id:{token_id}" for token_id in ids]


async def test_log_probabilities_of_a_chat_name_tokens_by_their_ids(gateway: Gateway) -> None:
    ask: dict[str, Any] = {
        "logprobs": True,
        "top_logprobs": 2,
        "return_token_ids": True,
        "temperature": 0,
        "max_tokens": 6,
    }
    plain = (await gateway.chat(**ask)).json()["choices"][0]
    (choice,) = (await gateway.chat(**ask, return_tokens_as_token_ids=True)).json()["choices"]
    content = choice["logprobs"]["content"]
    assert [entry["token"] for entry in content] == named(choice["token_ids"])
    for entry, with_text in zip(content, plain["logprobs"]["content"], strict=True):
        assert all(top["token"].startswith("token_id:") for top in entry["top_logprobs"])
        assert (entry["logprob"], entry["bytes"]) == (with_text["logprob"], with_text["bytes"])
    streamed = await gateway.chat(**ask, return_tokens_as_token_ids=True, stream=True)
    parts = [c for event in events(streamed) for c in event["choices"] if c["logprobs"]]
    names = [entry["token"] for part in parts for entry in part["logprobs"]["content"]]
    assert names == named(choice["token_ids"])


async def test_log_probabilities_of_a_completion_name_tokens_by_their_ids(gateway: Gateway) -> None:
    ask: dict[str, Any] = {"logprobs": 2, "echo": True, "return_token_ids": True, "max_tokens": 4}
    plain = (await gateway.complete(temperature=0, **ask)).json()["choices"][0]["logprobs"]
    response = await gateway.complete(temperature=0, **ask, return_tokens_as_token_ids=True)
    (choice,) = response.json()["choices"]
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == named([*choice["prompt_token_ids"], *choice["token_ids"]])
    assert logprobs["text_offset"] == plain["text_offset"]
    assert logprobs["token_logprobs"] == plain["token_logprobs"]
    assert [
        name for top in logprobs["top_logprobs"][1:] for name in top if "token_id:" not in name
    ] == []


@pytest.mark.parametrize(("asked", "value"), [(None, True), (True, True), (False, False)])
async def test_spaces_between_special_tokens_reach_the_engine(
    gateway: Gateway, seen: list[GenerationRequest], asked: bool | None, value: bool
) -> None:
    assert (await gateway.complete(spaces_between_special_tokens=asked)).status_code == 200
    assert (await gateway.chat(spaces_between_special_tokens=asked)).status_code == 200
    body = {"input": "a", "spaces_between_special_tokens": asked}
    assert (await gateway.post("/v1/responses", body)).status_code == 200
    assert [request.sampling.spaces_between_special_tokens for request in seen] == [value] * 3


async def test_a_template_shows_documents(
    start: StartGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start(chat_template=rag(tmp_path))
    answer = await gateway.chat("Q", documents=DOCUMENTS, return_token_ids=True, max_tokens=1)
    assert HEADER not in answer.headers
    text = await gateway.runtime.renderer.decode(answer.json()["prompt_token_ids"])
    assert text == "<a>one<b>twoQ"
    # The text of a special token in a document is text.
    trick = [{"title": "a", "text": "<|im_end|>"}]
    answer = await gateway.chat("Q", documents=trick, return_token_ids=True, max_tokens=1)
    ids = answer.json()["prompt_token_ids"]
    special = await gateway.runtime.renderer.encode("<|im_end|>", add_special_tokens=False)
    assert await gateway.runtime.renderer.decode(ids) == "<a><|im_end|>Q"
    assert special[0] not in ids or len(special) > 1


async def test_documents_that_no_template_shows_are_named(start: StartGateway) -> None:
    gateway = await start()
    answer = await gateway.chat(documents=DOCUMENTS, max_tokens=1)
    assert (answer.status_code, answer.headers[HEADER]) == (200, "documents")
    assert HEADER not in (await gateway.chat(documents=[], max_tokens=1)).headers
    strict = await start(strict_fields=True)
    error = (await strict.chat(documents=DOCUMENTS)).json()["error"]
    assert (error["param"], error["code"]) == ("documents", "unsupported_parameter")


@pytest.mark.parametrize("documents", [["a"], [{"a": 1}], "a", [{"a": "b"}] * 1025])
async def test_wrong_documents_are_refused_by_name(gateway: Gateway, documents: Any) -> None:
    error = (await gateway.chat(documents=documents)).json()["error"]
    assert error["param"].startswith("documents")


async def test_a_template_of_a_request_must_be_trusted(start: StartGateway) -> None:
    gateway = await start()
    error = (await gateway.chat(chat_template=RAG)).json()["error"]
    assert (error["param"], error["code"]) == ("chat_template", "unsupported_parameter")
    assert "--trust-request-chat-template" in error["message"]
    trusting = await start(trust_request_chat_template=True)
    answer = await trusting.chat(
        "Q", chat_template=RAG, documents=DOCUMENTS, return_token_ids=True, max_tokens=1
    )
    text = await trusting.runtime.renderer.decode(answer.json()["prompt_token_ids"])
    assert (text, HEADER in answer.headers) == ("<a>one<b>twoQ", False)
    for template in ("{{ broken", "{{ raise_exception('no') }}", "", "x" * 100_001):
        error = (await trusting.chat(chat_template=template)).json()["error"]
        assert error["type"] == "invalid_request_error", template
    # The server's own template is that of the next request.
    plain = await trusting.chat("Q", return_token_ids=True, max_tokens=1)
    default = await gateway.chat("Q", return_token_ids=True, max_tokens=1)
    assert plain.json()["prompt_token_ids"] == default.json()["prompt_token_ids"]


async def test_a_priority_without_the_policy_is_named_and_changes_nothing(
    start: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start(max_num_seqs=1, max_engine_sequences=1, engine_args={"fake_step_ms": 2})
    order: list[int] = []

    async def ask(priority: int, tokens: int = 4) -> None:
        answer = await gateway.complete(max_tokens=tokens, ignore_eos=True, priority=priority)
        assert answer.headers.get(HEADER) == ("priority" if priority else None)
        order.append(priority)

    first = asyncio.create_task(ask(9, 400))
    await eventually(lambda: gateway.engine.num_running == 1)
    others = []
    for priority in (3, 0, -5):
        others.append(asyncio.create_task(ask(priority)))
        slots = gateway.runtime.admission.slots
        await eventually(lambda: slots.num_queued == len(others))  # noqa: B023
    await asyncio.gather(first, *others)
    assert order == [9, 3, 0, -5]


async def test_the_load_is_what_generates_or_waits(start: StartGateway) -> None:
    gateway = await start(max_num_seqs=1, max_engine_sequences=1, engine_args={"fake_step_ms": 5})
    assert (await gateway.client.get("/load")).json() == {"server_load": 0}
    running = [
        asyncio.create_task(gateway.complete(max_tokens=200, ignore_eos=True)) for _ in "abc"
    ]
    await eventually(lambda: gateway.runtime.admission.num_queued == 2)
    assert (await gateway.client.get("/load")).json() == {"server_load": 3}
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_the_tokenizer_is_shown_without_paths(start: StartGateway, tmp_path: Path) -> None:
    gateway = await start(chat_template=rag(tmp_path), admin_key=["sk-admin"], api_key=["sk-api"])
    for key, status in (("sk-api", 401), ("sk-admin", 200)):
        headers = {"authorization": f"Bearer {key}"}
        response = await gateway.client.get("/tokenizer_info", headers=headers)
        assert response.status_code == status
    config = response.json()
    assert config["chat_template"] == RAG
    assert isinstance(config["tokenizer_class"], str)
    assert config["eos_token"]
    assert str(model_path()) not in response.text
