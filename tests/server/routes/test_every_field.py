"""docs/api.md's table of every field: it is complete, and the server does what it says."""

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import pytest_asyncio
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from engine_adapter.seam.types import GenerationRequest
from server.fill_in import FillInTokens
from server.schema.base import IGNORED, REFUSED, WITHOUT_EFFECT
from server.schema.chat import ChatCompletionRequest
from server.schema.completions import CompletionRequest
from server.schema.generation_body import GenerationBody
from tests import documentation
from tests.server.conftest import StartGateway, running
from tests.server.gateway import Gateway, record_requests

HEADER = "x-specgate-ignored-fields"
API = (Path(__file__).parents[3] / "docs/api.md").read_text("utf-8")
ROWS = [
    (re.findall(r"`(\w+)`", cells[0]), (cells[1], cells[2]))
    for cells in documentation.rows(documentation.section(API, "Every field"))[2:]
]
"""The fields of a row, and what happens to them in a chat, and in a completion."""
TABLE = {name: outcomes for names, outcomes in ROWS for name in names}
"""Field -> what happens to it in a chat, and in a completion."""

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MODELS: dict[str, type[GenerationBody]] = {
    CHAT: ChatCompletionRequest,
    COMPLETION: CompletionRequest,
}
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4},
    COMPLETION: {"prompt": "a", "max_tokens": 4},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
TEMPLATE = "{{ messages[0].content }} {{ reasoning_effort }} {{ documents }}"

ASKING: dict[str, Any] = {
    "add_generation_prompt": False,
    "add_special_tokens": True,
    "allowed_token_ids": [5, 6],
    "audio": {"voice": "alloy", "format": "wav"},
    "bad_words": ["a"],
    "best_of": {CHAT: 2, COMPLETION: 1},
    "cache_salt": "salt",
    "chat_template": "{{ messages }}",
    "chat_template_kwargs": {"colour": "red"},
    "continue_final_message": True,
    "documents": [{"title": "a", "text": "b"}],
    "ebnf": 'root ::= "a"',
    "ec_transfer_params": {"a": 1},
    "echo": True,
    "format": "json",
    "frequency_penalty": 0.5,
    "function_call": {"name": "f"},
    "functions": [{"name": "f"}],
    "grammar": 'root ::= "a"',
    "guided_choice": ["a", "b"],
    "guided_decoding_backend": "xgrammar",
    "guided_grammar": 'root ::= "a"',
    "guided_json": SCHEMA,
    "guided_regex": "a+",
    "guided_whitespace_pattern": " ",
    "ignore_eos": True,
    "include_reasoning": False,
    "include_stop_str_in_output": True,
    "json_schema": SCHEMA,
    "kv_transfer_params": {"a": 1},
    "length_penalty": 2.0,
    "logit_bias": {"5": 1},
    "logit_processors": ["a.b"],
    "logits_processors": ["a.b"],
    "logprob_token_ids": [5],
    "logprobs": {CHAT: True, COMPLETION: 2},
    "lora_name": "mine",
    "lora_path": "mine",
    "lora_request": {"lora_name": "mine"},
    "max_completion_tokens": 3,
    "max_tokens": 3,
    "media_io_kwargs": {"video": {"num_frames": 1}},
    "messages": [{"role": "user", "content": "b"}],
    "metadata": {"a": "b"},
    "min_p": 0.1,
    "min_tokens": 1,
    "mm_payload": "none",
    "mm_processor_kwargs": {"max_pixels": 100},
    "modalities": ["text", "audio"],
    "model": "specgate-demo",
    "moderation": {"model": "m"},
    "n": 2,
    "num_speculative_tokens": 1,
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "a"},
    "presence_penalty": 0.5,
    "priority": 3,
    "prompt": "b",
    "prompt_cache_key": "a",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
    "prompt_embeds": "AAAA",
    "prompt_logprobs": 1,
    "reasoning": {"effort": "low"},
    "reasoning_effort": "low",
    "regex": "a+",
    "repetition_detection": {"max_pattern_size": 3, "min_count": 2},
    "repetition_penalty": 1.1,
    "request_id": "mine",
    "response_format": {"type": "json_object"},
    "return_mm_kwargs": False,
    "return_prompt_text": True,
    "return_token_ids": True,
    "return_token_offsets": True,
    "return_tokens_as_token_ids": True,
    "routed_experts_prompt_start": 1,
    "safety_identifier": "a",
    "seed": 5,
    "service_tier": "flex",
    "session_id": "a",
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "spec_decode": {"proposer": "ngram"},
    "speculative_model": "ngram",
    "stop": ["x"],
    "stop_token_ids": [5],
    "store": True,
    "stream": True,
    "stream_interval": 4,
    "stream_options": {"include_usage": True},
    "structural_tag": "{}",
    "structured_outputs": {"regex": "a+"},
    "suffix": "b",
    "temperature": 0.5,
    "thinking_token_budget": 10,
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "tools": [TOOL],
    "top_k": 5,
    "top_logprobs": 2,
    "top_p": 0.5,
    "truncate_prompt_tokens": 5,
    "truncation_side": "right",
    "use_beam_search": True,
    "user": "me",
    "verbosity": "low",
    "vllm_xargs": {"a": 1},
    "watermarking": True,
    "web_search_options": {},
}
"""Values that ask for something; by path if the endpoints' types differ."""

WITH: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
    "tool_choice": {"tools": [TOOL]},
    "tools": {"tool_choice": "none"},
    "truncation_side": {"truncate_prompt_tokens": 5},
}
"""Fields that need another one."""


def openai_fields() -> set[str]:
    types = (
        chat_create_params.CompletionCreateParamsStreaming,
        completion_create_params.CompletionCreateParamsStreaming,
    )
    return {field for one in types for field in get_type_hints(one)}


def own_fields() -> set[str]:
    declared = {*ChatCompletionRequest.model_fields, *CompletionRequest.model_fields}
    return declared | {*REFUSED, *IGNORED, *WITHOUT_EFFECT}


def cases() -> Iterator[Any]:
    for field, outcomes in TABLE.items():
        for path, outcome in zip((CHAT, COMPLETION), outcomes, strict=True):
            yield pytest.param(path, field, outcome, id=f"{path.split('/')[2]}-{field}")


def test_the_table_has_every_field_of_openai_and_of_this_server() -> None:
    assert len(TABLE) > 100
    assert (openai_fields() | own_fields()) - TABLE.keys() == set()
    assert len(TABLE) == sum(len(names) for names, _ in ROWS)
    assert [names for names, _ in ROWS if names != sorted(names)] == []
    assert TABLE.keys() == ASKING.keys()


@pytest.mark.needs_vllm
def test_the_table_has_every_field_of_vllm_and_no_invented_one() -> None:
    from vllm.entrypoints.openai.chat_completion import protocol as chat
    from vllm.entrypoints.openai.completion import protocol as completion

    vllm = {*chat.ChatCompletionRequest.model_fields, *completion.CompletionRequest.model_fields}
    assert vllm - TABLE.keys() == set()
    assert TABLE.keys() - vllm - openai_fields() - own_fields() == set()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def answering(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """A gateway with every feature on; its engine answers any constraint."""
    template = tmp_path_factory.mktemp("template") / "template.jinja"
    template.write_text(TEMPLATE)
    async with running(
        chat_template=str(template),
        scheduling_policy="priority",
        trust_request_chat_template=True,
        reasoning_parser="deepseek_r1",
    ) as gateway:
        with pytest.MonkeyPatch.context() as patch:
            record_requests(gateway, patch)
            # The demo's tokenizer has none.
            patch.setattr(gateway.runtime.renderer, "fill_in_tokens", FillInTokens(3, 4, 5))
            yield gateway


def body_with(path: str, field: str) -> dict[str, Any]:
    value = ASKING[field]
    if isinstance(value, dict) and path in value:
        value = value[path]
    more = WITH.get(field, {}) if field in MODELS[path].model_fields else {}
    return {**BASE[path], **more, field: value}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("path", "field", "outcome"), cases())
async def test_the_server_does_what_the_table_says(
    answering: Gateway, path: str, field: str, outcome: str
) -> None:
    body = body_with(path, field)
    if field == "max_completion_tokens" and path == CHAT:
        del body["max_tokens"]
    response = await answering.post(path, body)
    declared = field in MODELS[path].model_fields
    if outcome == "refused":
        error = response.json()["error"]
        got = (response.status_code, error["param"], error["code"])
        assert got == (400, field, "unsupported_parameter")
        assert (await answering.post(path, {**BASE[path], field: None})).status_code == 200
        return
    assert response.status_code == 200, response.text
    assert outcome in ("works", "no effect", "ignored")
    assert declared is (outcome == "works")
    assert response.headers.get(HEADER) == (field if outcome == "ignored" else None)


async def test_a_strict_server_refuses_what_would_be_ignored(
    start: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start(strict_fields=True)
    seen: list[GenerationRequest] = record_requests(gateway, monkeypatch)
    for field, outcomes in TABLE.items():
        for path, outcome in zip((CHAT, COMPLETION), outcomes, strict=True):
            if outcome == "ignored":
                response = await gateway.post(path, body_with(path, field))
                assert (response.status_code, response.json()["error"]["param"]) == (400, field)
    assert not seen
