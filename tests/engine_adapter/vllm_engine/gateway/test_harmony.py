"""gpt-oss's messages: what is read of whole and streamed texts, and what constraints accept."""

import random
from dataclasses import replace
from typing import Any

import pytest
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from transformers import AutoTokenizer

from demo import model_path
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.seam.message_parts import (
    AssistantMessage,
    ReasoningPiece,
    TextPiece,
    ToolCall,
    assemble,
)
from engine_adapter.seam.parsing import NoCallGrammar, OutputParser, ParsingRequest
from engine_adapter.seam.types import ConstraintKind, Delta, FinishReason, StructuredOutput
from engine_adapter.vllm_engine.gateway import parsing as module
from engine_adapter.vllm_engine.gateway.harmony import MARKS, HarmonyParsing
from engine_adapter.vllm_engine.gateway.parsing import VllmParsers
from tests.cases import proved_beyond

pytestmark = pytest.mark.needs_vllm

TARGET = str(model_path("target"))
TOOLS = ({"type": "function", "function": {"name": "get"}},)
PLAN = "<|channel|>analysis<|message|>I think, Köln 🌍.<|end|>"
NEXT = "<|start|>assistant"
FINAL = "<|channel|>final<|message|>Hello, <b>Köln</b> 🌍!"
ARGUMENTS = '{"city": "Köln"}'
CALL = f"<|channel|>commentary to=functions.get <|constrain|>json<|message|>{ARGUMENTS}"
LATE_CALL = f" to=functions.get<|channel|>commentary json<|message|>{ARGUMENTS}"
ANSWER = AssistantMessage("Hello, <b>Köln</b> 🌍!", "I think, Köln 🌍.")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """The demo's tokenizer with gpt-oss's marks."""
    marked_tokenizer: Any = AutoTokenizer.from_pretrained(TARGET)
    marked_tokenizer.add_tokens(list(MARKS), special_tokens=True)
    return marked_tokenizer


@pytest.fixture
def parsers(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> VllmParsers:
    return loaded(tokenizer, monkeypatch)


def loaded(tokenizer: Any, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> VllmParsers:
    names = {"tool_call_parser": "openai", "reasoning_parser": "openai_gptoss", **settings}
    monkeypatch.setattr(module, "load_tokenizer", lambda config: tokenizer)
    loaded_parsers = VllmParsers(EngineConfig(TARGET, "demo", **names))
    loaded_parsers.load()
    return loaded_parsers


def parsing(
    parsers: VllmParsers, tokenizer: Any, prompt: str = "<|start|>assistant", *, tools: bool = True
) -> HarmonyParsing:
    ids = tuple(tokenizer.encode(prompt, add_special_tokens=False))
    harmony = parsers.parsing(ParsingRequest(ids, TOOLS if tools else ()), None)
    assert isinstance(harmony, HarmonyParsing)
    return harmony


def deltas(tokenizer: Any, text: str, size: int, stop_mark: str = "") -> list[Delta]:
    """The text as an engine sends it: of a stop token only the id, and no half character."""
    ids = tokenizer.encode(text + stop_mark, add_special_tokens=False)
    visible_before, parts = "", []
    for i in range(0, len(ids), size):
        visible = tokenizer.decode(ids[: i + size], skip_special_tokens=False)
        visible = visible_before if visible.endswith("\ufffd") else visible.removesuffix(stop_mark)
        parts.append(Delta(visible[len(visible_before) :], tuple(ids[i : i + size])))
        visible_before = visible
    return [*parts, Delta(text[len(visible_before) :], (), finish_reason=FinishReason.STOP)]


def without_ids(message: AssistantMessage) -> AssistantMessage:
    calls = tuple(replace(call, id="") for call in message.calls)
    return replace(message, calls=calls)


def read_all(parser: OutputParser, parts: list[Delta]) -> AssistantMessage:
    return without_ids(assemble(piece for delta in parts for piece in parser.read(delta)))


def read_in_all_ways(
    harmony: HarmonyParsing, tokenizer: Any, text: str, stop_mark: str = ""
) -> AssistantMessage:
    """The message, which is the same in one piece and in deltas of one to three tokens."""
    ids = tuple(tokenizer.encode(text + stop_mark, add_special_tokens=False))
    message = without_ids(harmony.new_parser().whole(Delta(text, ids)))
    for size in (1, 2, 3):
        parser = harmony.new_parser()
        assert read_all(parser, deltas(tokenizer, text, size, stop_mark)) == message
        assert parser.failure is None
    return message


def called(reasoning: str = "", text: str = "") -> AssistantMessage:
    return AssistantMessage(text, reasoning, (ToolCall("", "get", ARGUMENTS),))


@pytest.mark.parametrize(
    ("text", "stop_mark", "expected"),
    [
        (PLAN + NEXT + FINAL, "<|return|>", ANSWER),
        (FINAL, "", AssistantMessage(ANSWER.text)),
        (PLAN + NEXT + CALL, "<|call|>", called(ANSWER.reasoning)),
        (PLAN + NEXT + LATE_CALL, "<|call|>", called(ANSWER.reasoning)),
        (LATE_CALL, "", called()),
        (
            f"<|channel|>commentary<|message|>I look.<|end|>{NEXT}{CALL}",
            "<|call|>",
            called(text="I look."),
        ),
        # Messages of one kind are lines.
        (
            PLAN + NEXT + PLAN + NEXT + FINAL,
            "",
            AssistantMessage(ANSWER.text, f"{ANSWER.reasoning}\n{ANSWER.reasoning}"),
        ),
        # A message to another recipient than a function is the model's own work.
        (
            "<|channel|>commentary to=python<|message|>1+1<|call|>" + NEXT + FINAL,
            "",
            AssistantMessage(ANSWER.text, "1+1"),
        ),
        # Not quite the format: nothing is lost.
        ("Hello.", "", AssistantMessage("Hello.")),
        (" to be", "", AssistantMessage(" to be")),
        (" to", "", AssistantMessage(" to")),
        (
            "<|channel|>analysis<|message|>I think<|channel|>final<|message|>Hi",
            "",
            AssistantMessage("Hi", "I think"),
        ),
        (PLAN + "Hi", "", AssistantMessage("Hi", ANSWER.reasoning)),
        (
            "<|channel|>final<|message|>a<|constrain|>b<|message|>c",
            "",
            AssistantMessage("a<|constrain|>b<|message|>c"),
        ),
        ("<|channel|>" + "x" * 300, "", AssistantMessage("<|channel|>" + "x" * 300)),
        # The end of the text is the end of what can be read.
        ("<|channel|>analysis<|message|>I th", "", AssistantMessage("", "I th")),
        ("<|channel|>fin", "", AssistantMessage()),
        ("", "<|return|>", AssistantMessage()),
    ],
)
def test_a_text_is_read_in_one_piece_and_in_deltas(
    parsers: VllmParsers, tokenizer: Any, text: str, stop_mark: str, expected: AssistantMessage
) -> None:
    harmony = parsing(parsers, tokenizer)
    assert read_in_all_ways(harmony, tokenizer, text, stop_mark) == expected


def test_a_mark_in_words_is_text(parsers: VllmParsers, tokenizer: Any) -> None:
    first = tokenizer.encode(FINAL, add_special_tokens=False)
    words = tokenizer.encode("<|en", add_special_tokens=False)
    words += tokenizer.encode("d|> ends", add_special_tokens=False)
    delta = Delta(FINAL + "<|end|> ends", (*first, *words))
    message = parsing(parsers, tokenizer).new_parser().whole(delta)
    assert message.text == ANSWER.text + "<|end|> ends"


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("<|start|>assistant<|channel|>final<|message|>Hel", "lo", AssistantMessage("lo")),
        (
            "<|start|>assistant<|channel|>analysis<|message|>Hm",
            "m.<|end|>" + NEXT + FINAL,
            AssistantMessage(ANSWER.text, "m."),
        ),
        ("<|start|>assistant<|channel|>fin", "al<|message|>Hi", AssistantMessage("Hi")),
        ("<|start|>user<|message|>Hi<|end|>", "Hello", AssistantMessage("Hello")),
        ("Once", FINAL, AssistantMessage(ANSWER.text)),
    ],
)
def test_the_prompt_says_where_the_text_begins(
    parsers: VllmParsers, tokenizer: Any, prompt: str, text: str, expected: AssistantMessage
) -> None:
    harmony = parsing(parsers, tokenizer, prompt)
    assert read_in_all_ways(harmony, tokenizer, text) == expected


def test_without_tools_arguments_are_text(parsers: VllmParsers, tokenizer: Any) -> None:
    harmony = parsing(parsers, tokenizer, tools=False)
    message = read_in_all_ways(harmony, tokenizer, PLAN + NEXT + CALL)
    assert message == AssistantMessage(ARGUMENTS, ANSWER.reasoning)


def test_without_its_parser_reasoning_is_text(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    harmony = parsing(loaded(tokenizer, monkeypatch, reasoning_parser=None), tokenizer)
    message = read_in_all_ways(harmony, tokenizer, PLAN + NEXT + FINAL)
    assert message == AssistantMessage(f"{ANSWER.reasoning}\n{ANSWER.text}")
    assert harmony.new_parser().num_reasoning_tokens is None


def test_reasoning_streams_and_its_tokens_are_counted(parsers: VllmParsers, tokenizer: Any) -> None:
    parser, kinds = parsing(parsers, tokenizer).new_parser(), []
    for delta in deltas(tokenizer, PLAN + NEXT + FINAL, 1):
        kinds += [type(piece) for piece in parser.read(delta)]
    thought = tokenizer.encode(ANSWER.reasoning, add_special_tokens=False)
    assert parser.num_reasoning_tokens == len(thought)
    assert kinds.count(ReasoningPiece) > 5
    assert kinds.index(TextPiece) == kinds.count(ReasoningPiece)


def test_what_a_stop_string_cuts_off_is_not_shown(parsers: VllmParsers, tokenizer: Any) -> None:
    """The engine sends the ids of all tokens, and the text up to the string."""
    ids = tuple(tokenizer.encode(PLAN + NEXT + FINAL, add_special_tokens=False))
    cut = (PLAN + NEXT + FINAL).removesuffix("Köln</b> 🌍!")
    parser = parsing(parsers, tokenizer).new_parser()
    pieces = list(parser.read(Delta(cut[:-4], ids)))
    pieces += parser.read(Delta(cut[-4:], (), finish_reason=FinishReason.STOP))
    assert assemble(pieces) == AssistantMessage("Hello, <b>", ANSWER.reasoning)


WORDS = (
    "assistant",
    " to=functions.get",
    " to=",
    "analysis",
    "final",
    "commentary",
    " json",
    "Köln 🌍",
)


@pytest.mark.parametrize("seed", proved_beyond(range(40), range(1000)))
def test_any_text_is_read_in_the_same_way_in_any_deltas(
    parsers: VllmParsers, tokenizer: Any, seed: int
) -> None:
    rng = random.Random(seed)
    parts = rng.choices((*MARKS, *WORDS), k=rng.randrange(1, 25))
    prompt = "".join(rng.choices((*MARKS, *WORDS), k=rng.randrange(6)))
    harmony = parsing(parsers, tokenizer, prompt, tools=rng.random() < 0.7)
    message = read_in_all_ways(harmony, tokenizer, "".join(parts))
    shown_text = message.text + message.reasoning + "".join(c.arguments for c in message.calls)
    assert sum(map(shown_text.count, "🌍")) <= "".join(parts).count("🌍")
    # Without a header, nothing of the text is hidden but marks.
    if not {"<|start|>", "<|channel|>"} & {*parts, *made_of(prompt)}:
        assert shown_text.count("🌍") == "".join(parts).count("🌍")


def made_of(prompt: str) -> list[str]:
    """The marks of a prompt."""
    return [mark for mark in MARKS if mark in prompt]


def test_half_a_header_is_not_shown(parsers: VllmParsers, tokenizer: Any) -> None:
    ids = tuple(tokenizer.encode(PLAN + NEXT + FINAL, add_special_tokens=False))
    parser = parsing(parsers, tokenizer).new_parser()
    pieces = parser.read(Delta(PLAN + NEXT + "<|chan", ids, finish_reason=FinishReason.STOP))
    assert assemble(pieces) == AssistantMessage("", ANSWER.reasoning)


def test_a_text_that_the_tokens_do_not_have_is_shown_as_it_is(
    parsers: VllmParsers, tokenizer: Any
) -> None:
    ids = tuple(tokenizer.encode(FINAL, add_special_tokens=False))
    parser = parsing(parsers, tokenizer).new_parser()
    pieces = list(parser.read(Delta(FINAL[: FINAL.index("lo,")] + "??", ids)))
    pieces += parser.read(Delta(" more", (5,), finish_reason=FinishReason.STOP))
    assert assemble(pieces).text == "Hel?? more"
    assert parser.failure is not None
    assert parser.failure.reason == "error"


@pytest.mark.parametrize(
    ("settings", "field", "reason"),
    [
        ({"tool_call_parser": "hermes"}, "tool_call_parser", "must be openai or none"),
        ({"reasoning_parser": "qwen3"}, "reasoning_parser", "must be openai_gptoss or none"),
    ],
)
def test_parsers_of_another_model_are_refused(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, settings: Any, field: str, reason: str
) -> None:
    with pytest.raises(EngineConfigError, match=f"{field}: {reason}"):
        loaded(tokenizer, monkeypatch, **settings)


def test_a_tokenizer_without_the_marks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = AutoTokenizer.from_pretrained(TARGET)
    with pytest.raises(EngineConfigError, match=r"lacks <\|start\|>, <\|channel\|>"):
        loaded(plain, monkeypatch)


JSON_ANSWER = StructuredOutput(
    ConstraintKind.JSON_SCHEMA,
    '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}',
    param="response_format",
    unenforced=("uniqueItems",),
)
SCHEMAS = {"get": '{"type": "object", "properties": {"x": {"enum": ["p"]}}, "required": ["x"]}'}


def accepts(constraint: StructuredOutput, tokenizer: Any, text: str) -> bool:
    assert constraint.kind is ConstraintKind.GRAMMAR
    known = from_tokenizer(tokenizer)
    matcher = LLMatcher(known, LLMatcher.grammar_from_lark(constraint.value))
    tokens = known.tokenize_bytes(text.encode(), parse_special=True)
    return bool(
        matcher.validate_tokens(tokens) == len(tokens)
        and matcher.consume_tokens(tokens)
        and matcher.is_accepting()
    )


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        (JSON_ANSWER, '{"a":1}', '{"a":"1"}'),
        (StructuredOutput(ConstraintKind.JSON_OBJECT), '{"b":[]}', "[]"),
        (StructuredOutput(ConstraintKind.REGEX, "[ab]+/"), "aba/", "abc/"),
        (
            StructuredOutput(ConstraintKind.CHOICE, choices=("yes", "<|end|>no\n")),
            "yes",
            "maybe",
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, StructuredOutput) else "",
)
def test_an_answer_is_held_to_its_constraint_after_the_reasoning(
    parsers: VllmParsers, tokenizer: Any, answer: StructuredOutput, right: str, wrong: str
) -> None:
    constraint = parsing(parsers, tokenizer, tools=False).text_constraint(answer)
    assert (constraint.param, constraint.unenforced) == (answer.param, answer.unenforced)
    for before in ("", PLAN + NEXT, PLAN + NEXT + PLAN + NEXT):
        for mark in ("", " json", " <|constrain|>json"):
            header = f"{before}<|channel|>final{mark}<|message|>"
            assert accepts(constraint, tokenizer, header + right)
            assert not accepts(constraint, tokenizer, header + wrong)
    for text in (right, PLAN, PLAN + NEXT + CALL):
        assert not accepts(constraint, tokenizer, text)


def test_a_grammar_of_an_answer_has_no_place(parsers: VllmParsers, tokenizer: Any) -> None:
    answer = StructuredOutput(ConstraintKind.GRAMMAR, 'start: "a"')
    with pytest.raises(NoCallGrammar, match="cannot stand within"):
        parsing(parsers, tokenizer).text_constraint(answer)


def test_chosen_calls_are_held_to_their_schemas(parsers: VllmParsers, tokenizer: Any) -> None:
    harmony = parsing(parsers, tokenizer)
    free = harmony.call_constraint(SCHEMAS, None, single_call=False)
    strict = harmony.call_constraint(SCHEMAS, JSON_ANSWER, single_call=False)
    assert free.begins == strict.begins == ()
    assert free.constraint.param == "tools"
    right, wrong = (
        [text.replace(ARGUMENTS, arguments) for text in (CALL, LATE_CALL)]
        for arguments in ('{"x":"p"}', '{"x":"q"}')
    )
    for constraint in (free.constraint, strict.constraint):
        for text in right:
            assert accepts(constraint, tokenizer, PLAN + NEXT + text)
            assert accepts(constraint, tokenizer, text + "<|call|>")
            assert read_in_all_ways(harmony, tokenizer, text).calls[0].name == "get"
        for text in wrong:
            assert not accepts(constraint, tokenizer, PLAN + NEXT + text)
        unknown = right[0].replace("functions.get", "functions.other")
        assert not accepts(constraint, tokenizer, unknown)
    note = f"<|channel|>commentary<|message|>I look.<|end|>{NEXT}"
    assert accepts(free.constraint, tokenizer, note + right[0])
    assert accepts(free.constraint, tokenizer, PLAN + NEXT + FINAL)
    assert not accepts(strict.constraint, tokenizer, PLAN + NEXT + FINAL)
    assert accepts(strict.constraint, tokenizer, '<|channel|>final<|message|>{"a":1}')


def test_with_another_backend_there_is_no_constraint(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {"structured_outputs_config": {"backend": "xgrammar"}}
    harmony = parsing(loaded(tokenizer, monkeypatch, arguments=arguments), tokenizer)
    with pytest.raises(NoCallGrammar, match="backend 'xgrammar'"):
        harmony.text_constraint(JSON_ANSWER)
