"""vLLM's own parsers, found from chat templates that write calls and reasoning as models do."""

import copy
from pathlib import Path
from typing import Any

import pytest

from engine_adapter.seam.config import AUTO_PARSER, EngineConfig
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.seam.types import ParserChoice
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway import parser_search as module
from engine_adapter.vllm_engine.gateway.parser_families import FAMILIES
from tests.engine_adapter.vllm_engine.gateway.family_calls import CALLS, FamilyCall
from tests.engine_adapter.vllm_engine.gateway.parser_texts import (
    TARGET,
    ParserKind,
    asked_tokens,
    demo_tokenizer,
)

pytestmark = pytest.mark.needs_vllm

CHAT = (
    "{% for m in messages %}<|m|>{{ m.role }}:{% if m.tool_calls %}CALL"
    "{% elif m.role == 'assistant' %}ANSWER{% else %}{{ m.content }}{% endif %}<|e|>{% endfor %}"
    "{% if add_generation_prompt %}<|m|>assistant:PROMPT{% endif %}"
)
ANY = "{{ m.content }}"
THOUGHT = "{% if m.reasoning %}<think>{{ m.reasoning }}</think>{% endif %}{{ m.content }}"
HERMES = CALLS[0].text


def template(call: str = ANY, answer: str = ANY, prompt: str = "") -> str:
    """A chat template with these parts."""
    verbatim = call if call == ANY else "{% raw %}" + call + "{% endraw %}"
    return CHAT.replace("CALL", verbatim).replace("ANSWER", answer).replace("PROMPT", prompt)


def search(
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    *,
    tokens: tuple[str, ...] = ("<think>", "</think>"),
    architecture: str = "LlamaForCausalLM",
    **settings: Any,
) -> tuple[ParserChoice, ParserChoice]:
    """The choices for a model with this template, in a tokenizer with these tokens."""
    tokenizer = copy.deepcopy(demo_tokenizer())
    tokenizer.add_tokens(list(tokens), special_tokens=True)
    tokenizer.chat_template = text
    monkeypatch.setattr(module, "load_tokenizer", lambda config: tokenizer)
    monkeypatch.setattr(module, "target_architectures", lambda config: (architecture,))
    fields = {"tool_call_parser": AUTO_PARSER, "reasoning_parser": AUTO_PARSER, **settings}
    return module.choose_parsers(EngineConfig(TARGET, "demo", **fields))


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_the_parser_is_that_of_the_calls_which_the_template_writes(
    monkeypatch: pytest.MonkeyPatch, call: FamilyCall
) -> None:
    if call.parser not in compat.ToolParserManager.list_registered():
        pytest.skip("this release of vLLM does not have it")
    tokens = asked_tokens(ParserKind("tool_call_parser", call.parser))
    calls, reasoning = search(
        monkeypatch,
        template(call.text),
        tokens=tokens,
        architecture=call.architecture or "LlamaForCausalLM",
    )
    assert calls.name == call.parser, calls.reason
    assert reasoning.name is None


def test_every_parser_of_calls_has_a_family_and_a_call_in_these_tests() -> None:
    registered = set(compat.ToolParserManager.list_registered())
    same_class = {"qwen3_json": "hermes", "qwen3_xml": "qwen3_coder", "musespark1x": "muse"}
    in_table = {family.tool_call_parser for family in FAMILIES}
    assert registered - in_table - same_class.keys() == {"hf"}, "it reads a tokenizer's own rules"
    untried = {
        "cohere_command3": "a package that is not installed",
        "cohere_command4": "a package that is not installed",
        "beam": "a form that no template here shows",
        "functiongemma": "it leaves out arguments that are no strings",
    }
    assert in_table - {call.parser for call in CALLS} - {None} == untried.keys()


def test_every_parser_of_reasoning_has_a_family() -> None:
    registered = set(compat.ReasoningParserManager.list_registered())
    same_marks = {"holo2", "minicpmv", "minimax_m2_append_think", "musespark1x"}
    in_table = {family.reasoning_parser for family in FAMILIES}
    assert registered - in_table - same_marks == {"hf"}


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        (None, None, "the target has no chat template"),
        (template(), None, "the chat template writes no calls"),
        (template("<call>get_weather of Bonn</call>"), None, "a form without a known parser"),
        (template("{{ raise_exception('no tools') }}"), None, "no calls"),
        ("{{ raise_exception('no chats') }}", None, "rejects a call: no chats"),
        (template(HERMES.replace("days", "hours")), None, "hermes: it does not read"),
    ],
)
def test_without_clear_evidence_there_is_no_parser_of_calls(
    monkeypatch: pytest.MonkeyPatch, text: str | None, name: str | None, reason: str
) -> None:
    calls, _ = search(monkeypatch, text)
    assert calls.name == name
    assert reason in calls.reason


def test_a_parser_that_lacks_its_tokens_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    call = next(call for call in CALLS if call.parser == "llama3_json")
    calls, _ = search(monkeypatch, template(call.text))
    assert calls.name is None
    assert "python_tag" in calls.reason


def test_a_template_that_asks_for_calls_in_words_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = "{# write <|tool_call|> followed by a JSON list #}" + template()
    calls, _ = search(monkeypatch, asks, tokens=("<|tool_call|>",))
    assert calls == ParserChoice("granite", "the chat template asks for calls like Granite 3")


OPEN, CLOSED = "<think>\\n", "<think>\\n\\n</think>\\n\\n"
SWITCHED_OFF = "{% if enable_thinking is false %}" + CLOSED + "{% endif %}"
UNLESS_TOLD = "{% if enable_thinking is not defined %}" + OPEN + "{% endif %}"
ASKED = "{% if thinking %}" + OPEN + "{% else %}" + CLOSED + "{% endif %}"
ON_DEMAND = "{% if enable_thinking %}" + OPEN + "{% endif %}"
OFF_BY_DEFAULT = "{% if enable_thinking %}" + OPEN + "{% else %}" + CLOSED + "{% endif %}"


@pytest.mark.parametrize(
    ("call", "answer", "prompt", "name"),
    [
        (ANY, ANY, OPEN, "deepseek_r1"),
        (HERMES, THOUGHT, SWITCHED_OFF, "qwen3"),
        (HERMES, THOUGHT, UNLESS_TOLD, "qwen3"),
        (ANY, ANY, ASKED, "deepseek_r1"),
        (HERMES, ANY, ON_DEMAND, "deepseek_v3"),
        (HERMES, ANY, OFF_BY_DEFAULT, "qwen3"),
        (ANY, "<think></think>" + ANY, "", "deepseek_r1"),
        # Without evidence that such a model always reasons, its answers could be swallowed.
        (HERMES, THOUGHT, "", None),
        (ANY, THOUGHT, "", None),
        (HERMES, ANY, "", None),
        (ANY, ANY, CLOSED, None),
        (ANY, ANY, "<plan>", None),
    ],
)
def test_reasoning_is_told_by_the_prompts_of_the_template(
    monkeypatch: pytest.MonkeyPatch, call: str, answer: str, prompt: str, name: str | None
) -> None:
    _, reasoning = search(monkeypatch, template(call, answer, prompt))
    assert reasoning.name == name, reasoning.reason


def test_a_parser_that_looks_for_tokens_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    _, with_tokens = search(monkeypatch, template(prompt=OPEN))
    _, without_tokens = search(monkeypatch, template(prompt=OPEN), tokens=())
    assert (with_tokens.name, without_tokens.name) == ("deepseek_r1", "qwen3")


def test_a_parser_that_is_named_or_turned_off_is_not_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = template(HERMES, prompt=OPEN)
    calls, reasoning = search(monkeypatch, text, tool_call_parser="mistral")
    assert (calls, reasoning.name) == (ParserChoice("mistral", "it is set"), "qwen3")
    calls, reasoning = search(monkeypatch, text, reasoning_parser=None)
    assert (calls.name, reasoning) == ("hermes", ParserChoice(None, "it is turned off"))


def test_the_file_of_a_template_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text(template(HERMES), encoding="utf-8")
    calls, _ = search(monkeypatch, template(), chat_template=str(file))
    assert calls.name == "hermes"
    with pytest.raises(EngineConfigError, match=r"gone\.jinja"):
        search(monkeypatch, template(), chat_template=str(tmp_path / "gone.jinja"))


def test_the_demo_writes_calls_like_hermes_and_has_no_reasoning() -> None:
    config = EngineConfig(
        TARGET, "demo", tool_call_parser=AUTO_PARSER, reasoning_parser=AUTO_PARSER
    )
    calls, reasoning = module.choose_parsers(config)
    assert (calls.name, reasoning.name) == ("hermes", None)
