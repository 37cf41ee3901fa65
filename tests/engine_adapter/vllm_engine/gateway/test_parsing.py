"""vLLM's parsers behind the seam: names, tokenizers, whole texts and streams."""

import json
from typing import Any

import pytest
from transformers import AutoTokenizer

from demo import model_path
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.seam.message_parts import AssistantMessage, assemble
from engine_adapter.seam.parsing import ParsingRequest
from engine_adapter.seam.types import Delta, FinishReason
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway import parsing as module
from engine_adapter.vllm_engine.gateway.parsing import VllmParsers, VllmParsing
from tests.engine_adapter.vllm_engine.gateway import parser_texts
from tests.engine_adapter.vllm_engine.gateway.parser_texts import ParserKind

pytestmark = pytest.mark.needs_vllm

TARGET = str(model_path("target"))
TOOLS = (
    {
        "type": "function",
        "function": {"name": "get", "description": None, "parameters": None, "strict": True},
    },
)
ARGUMENTS = {"city": "Köln", "n": [1, {"a": "}"}]}
CALLED = json.dumps({"name": "get", "arguments": ARGUMENTS}, ensure_ascii=False)
CALL = f"<tool_call>\n{CALLED}\n</tool_call>"


def loaded(**parsers: str) -> VllmParsers:
    made = VllmParsers(EngineConfig(TARGET, "demo", **parsers))  # type: ignore[arg-type]
    made.load()
    return made


@pytest.fixture(scope="module")
def thinking() -> Any:
    """The demo's tokenizer with the tokens of reasoning."""
    tokenizer: Any = AutoTokenizer.from_pretrained(TARGET)
    tokenizer.add_tokens(["<think>", "</think>"], special_tokens=True)
    return tokenizer


@pytest.fixture
def both(thinking: Any, monkeypatch: pytest.MonkeyPatch) -> VllmParsers:
    monkeypatch.setattr(module, "load_tokenizer", lambda config: thinking)
    return loaded(tool_call_parser="hermes", reasoning_parser="deepseek_r1")


@pytest.mark.parametrize("apart", [{}, {"tokenizer": "elsewhere"}], ids=["own", "apart"])
def test_the_tokenizer_is_the_one_that_vllm_loads(
    monkeypatch: pytest.MonkeyPatch, thinking: Any, apart: dict[str, str]
) -> None:
    read: list[tuple[str, str]] = []

    def load(name: str, *, revision: str, **_: Any) -> Any:
        read.append((name, revision))
        return thinking

    monkeypatch.setitem(vars(compat), "get_tokenizer", load)
    for arguments, revision in (({}, "r1"), ({"tokenizer_revision": "r2"}, "r2")):
        given = {"revision": "r1"} | apart | arguments
        config = EngineConfig("own", "demo", reasoning_parser="deepseek_r1", arguments=given)
        VllmParsers(config).load()
        assert read.pop() == (apart.get("tokenizer", "own"), revision)


def messages(
    parsers: VllmParsers, tokenizer: Any, text: str, *, tools: bool = True
) -> list[AssistantMessage]:
    """The whole message, and the one that is read token by token."""
    made = parsers.parsing(ParsingRequest((5, 6), TOOLS if tools else ()), None)
    assert made is not None
    ids = tokenizer.encode(text, add_special_tokens=False)
    everything = Delta(text, tuple(ids), finish_reason=FinishReason.STOP)
    whole = made.new_parser().whole(everything)
    parser, pieces, before = made.new_parser(), [], ""
    for i in range(len(ids)):
        now = tokenizer.decode(ids[: i + 1], skip_special_tokens=False)
        shown = before if now.endswith("\ufffd") else now
        pieces += parser.read(Delta(shown[len(before) :], (ids[i],)))
        before = shown
    pieces += parser.read(Delta("", (2,), finish_reason=FinishReason.STOP))
    return [whole, assemble(pieces)]


def test_a_call_is_found_in_whole_and_streamed_text(both: VllmParsers, thinking: Any) -> None:
    for got in messages(both, thinking, "<think>Hm.</think>Well. " + CALL):
        assert got.reasoning == "Hm."
        assert got.text.strip() == "Well."
        (call,) = got.calls
        assert (call.name, json.loads(call.arguments)) == ("get", ARGUMENTS)
        assert call.id


def test_text_without_tools_keeps_its_calls(both: VllmParsers, thinking: Any) -> None:
    for got in messages(both, thinking, "<think>Hm.</think>" + CALL, tools=False):
        assert (got.reasoning, got.calls) == ("Hm.", ())
        assert got.text == CALL


def test_reasoning_tokens_are_counted(both: VllmParsers, thinking: Any) -> None:
    made = both.parsing(ParsingRequest((5, 6)), None)
    assert made is not None
    parser = made.new_parser()
    text = "<think>one two</think>three"
    ids = tuple(thinking.encode(text, add_special_tokens=False))
    parser.whole(Delta(text, ids, finish_reason=FinishReason.STOP))
    reasoning = thinking.encode("one two", add_special_tokens=False)
    assert parser.num_reasoning_tokens == len(reasoning)


def test_special_marks_of_reasoning_stay_in_the_text(
    thinking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary: Any = AutoTokenizer.from_pretrained(TARGET)
    ordinary.add_tokens(["<think>", "</think>"])
    for tokenizer, needed in ((thinking, True), (ordinary, False)):
        monkeypatch.setattr(module, "load_tokenizer", lambda config, made=tokenizer: made)
        parsers = loaded(reasoning_parser="deepseek_r1")
        made = parsers.parsing(ParsingRequest((5,)), None)
        assert made is not None
        assert made.needs_special_tokens is needed


@pytest.mark.parametrize("tools", [False, True])
def test_a_prompt_can_have_ended_the_reasoning(
    both: VllmParsers, thinking: Any, tools: bool
) -> None:
    prompt = tuple(thinking.encode("<think></think>", add_special_tokens=False))
    made = both.parsing(ParsingRequest(prompt, TOOLS if tools else ()), None)
    assert made is not None
    for text, calls in (("Well.", 0), (CALL, int(tools))):
        ids = tuple(thinking.encode(text, add_special_tokens=False))
        everything = Delta(text, ids, finish_reason=FinishReason.STOP)
        whole = made.new_parser().whole(everything)
        streamed = assemble(made.new_parser().read(everything))
        for got in (whole, streamed):
            assert (got.reasoning, len(got.calls)) == ("", calls)
            assert got.text == ("" if calls else text)


def test_hermes_needs_special_tokens_and_no_constraint() -> None:
    parsers = loaded(tool_call_parser="hermes")
    made = parsers.parsing(ParsingRequest((5,), TOOLS, num_earlier_calls=3), None)
    assert isinstance(made, VllmParsing)
    assert made.needs_special_tokens
    assert made._body.structured_outputs is None
    assert parsers.parsing(ParsingRequest((5,)), None) is None


@pytest.mark.parametrize(
    ("parsers", "setting", "message"),
    [
        ({"tool_call_parser": "nope"}, "tool_call_parser", "hermes"),
        ({"reasoning_parser": "nope"}, "reasoning_parser", "deepseek_r1"),
        ({"reasoning_parser": "deepseek_r1"}, "reasoning_parser", "think start/end tokens"),
    ],
)
def test_a_parser_that_cannot_work_is_refused_at_the_start(
    parsers: dict[str, str], setting: str, message: str
) -> None:
    with pytest.raises(EngineConfigError, match=message) as caught:
        loaded(**parsers)
    assert caught.value.setting == setting


def test_without_parsers_nothing_is_loaded() -> None:
    assert not VllmParsers(EngineConfig(TARGET, "demo")).are_configured


@pytest.mark.parametrize("text", ["<|channel>thought\nPlan.<channel|>Answer.", "Answer."])
def test_a_stream_of_a_model_that_need_not_reason_is_read_without_tools(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """vLLM's parser alone would leave all marks in the stream."""
    parsers = parser_texts.loaded(ParserKind("reasoning_parser", "gemma4"), monkeypatch)
    parser = parser_texts.new_parser(parsers)
    pieces = [piece for delta in parser_texts.deltas(parsers, text) for piece in parser.read(delta)]
    message = assemble(pieces)
    assert (message.reasoning, message.text) == ("Plan." if "Plan" in text else "", "Answer.")
