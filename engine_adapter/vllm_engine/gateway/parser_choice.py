"""Finds vLLM's parsers of a model's calls and of its reasoning.

A wrong parser swallows answers, so nothing is taken on trust: the chat template writes a call and a
prompt, `parser_families` says which parser such a text may have, and that parser must read it.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal

from engine_adapter.seam.message_parts import AssistantMessage
from engine_adapter.seam.text import truncate
from engine_adapter.seam.types import ParserChoice
from engine_adapter.vllm_engine.gateway.parser_families import (
    EXAMPLE_ARGUMENTS,
    EXAMPLE_NAME,
    FAMILIES,
    Family,
    Marks,
)

PROBE_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": EXAMPLE_NAME,
        "description": "The weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "A city."},
                "days": {"type": "integer", "description": "How many days."},
            },
            "required": ["city"],
        },
    },
}
"""The tool of the call that a chat template is asked to write."""

_QUESTION, _ANSWER, _PLAN = "What next?", "Zebras graze.", "Quagga plan."
_CALL_IDS = (f"functions.{EXAMPLE_NAME}:0", "abcdef123")
"""Kimi's templates want ids of the first form, Mistral's of the second."""

_SWITCHES: Sequence[Mapping[str, Any]] = (
    {"enable_thinking": False},
    {"enable_thinking": True},
    {"thinking": False},
    {"thinking": True},
    {"thinking_budget": 0},
)
"""Variables with which clients switch the reasoning of a model on or off."""

Read = Callable[[Family, "Probe"], Sequence[AssistantMessage]]
"""What the family's parser reads of a text, in each way to read it. Raises `CannotRead`."""


class CannotRead(Exception):
    """A parser cannot be used for this model; the message says why."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A text as the model writes it.

    Attributes:
        prompt: the prompt before it, as text.
        has_call: whether it is a call; if not, it may have reasoning.
        variables: of the chat template.
    """

    text: str
    prompt: str
    has_call: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)


class Template:
    """A model's chat template.

    Args:
        source: its text.
        render: writes messages, with the options and variables of `apply_chat_template`. It may
            raise anything: the template is the model's.
    """

    def __init__(self, source: str, render: Callable[..., str]) -> None:
        self.source = source
        self._render = render

    def prompt(self, **options: Any) -> str:
        """The prompt of a question. Raises what the template raises."""
        return self._render([_user()], add_generation_prompt=True, **options)

    def call(self) -> str:
        """A call as an assistant's message has it; empty if the template shows none.

        Raises what the template raises.
        """
        fault: Exception | None = None
        for call_id in _CALL_IDS:
            function = {"name": EXAMPLE_NAME, "arguments": EXAMPLE_ARGUMENTS}
            call = {"id": call_id, "type": "function", "function": function}
            try:
                message_text = self._render(
                    [_user(), {"role": "assistant", "content": "", "tool_calls": [call]}],
                    tools=[PROBE_TOOL],
                )
                answer = self._render([_user(), _assistant()], tools=[PROBE_TOOL])
            except Exception as error:  # a template can raise anything
                fault = error
                continue
            message_text = _difference(message_text, answer)
            if EXAMPLE_NAME in message_text and str(EXAMPLE_ARGUMENTS["city"]) in message_text:
                return message_text
        if fault is not None:
            raise fault
        return ""

    def always_marks(self, marks: Marks) -> bool:
        """Whether each answer of the assistant has these marks. Raises what the template raises."""
        answer = self._render([_user(), _assistant()])
        return marks[0] in answer.rpartition(_QUESTION)[2]


def choose_calls(template: Template, architectures: Sequence[str], reader: Read) -> ParserChoice:
    """The parser of a model's calls, and why it is that one."""
    try:
        call, prompt = template.call(), template.prompt(tools=[PROBE_TOOL])
    except Exception as error:  # a template can raise anything
        return ParserChoice(None, f"the chat template rejects a call: {truncate(str(error))}")
    faults = {}
    for family in FAMILIES:
        name, text = family.tool_call_parser, family.call_in(call, template.source)
        if name is None or not (text and family.fits(architectures)):
            continue
        probe = Probe(text, prompt, has_call=True)
        faults[name] = _fault(reader, family, [(probe, _is_probe_call)])
        if faults[name] is None:
            verb = "writes" if call else "asks for"
            return ParserChoice(name, f"the chat template {verb} calls like {family.name}")
    if faults:
        return ParserChoice(None, _described(faults))
    form = "calls in a form without a known parser" if call else "no calls"
    return ParserChoice(None, f"the chat template writes {form}")


def choose_reasoning(
    template: Template, architectures: Sequence[str], reader: Read
) -> ParserChoice:
    """The parser of a model's reasoning, and why it is that one.

    It must read what the model writes after each prompt: with reasoning open, with reasoning
    closed, and with neither.
    """
    tests: list[Test]
    try:
        call = template.call()
    except Exception:  # then families are told by their architectures
        call = ""
    families = [
        family
        for family in FAMILIES
        if family.reasoning_parser is not None
        and family.fits(architectures)
        and (not family.call or family.call_in(call, template.source))
    ]
    faults = {}
    for family in families:
        try:
            tests = list(_reasoning_tests(template, family.marks))
        except Exception as error:  # a template can raise anything
            return ParserChoice(None, f"the chat template rejects a chat: {truncate(str(error))}")
        if not any(is_right is _has_plan for _, is_right in tests):
            continue
        name = str(family.reasoning_parser)
        faults[name] = _fault(reader, family, tests)
        if faults[name] is None:
            return ParserChoice(name, f"the chat template marks reasoning with {family.marks[0]}")
    if faults:
        return ParserChoice(None, _described(faults))
    return ParserChoice(None, "the chat template does not show that the model reasons")


Test = tuple["Probe", Callable[[AssistantMessage], bool]]
"""A text, and whether a message is what the text says."""


def _fault(reader: Read, family: Family, tests: Sequence[Test]) -> str | None:
    """Why the family's parser cannot be used; `None` if it reads all texts right."""
    try:
        for probe, is_right in tests:
            if not all(map(is_right, reader(family, probe))):
                return f"it does not read {probe.text!r}"
    except CannotRead as error:
        return str(error)
    return None


def _described(faults: Mapping[str, str | None]) -> str:
    reasons = "; ".join(f"{name}: {fault}" for name, fault in faults.items())
    return f"no parser fits the chat template ({reasons})"


def _reasoning_tests(template: Template, marks: Marks) -> Iterator[Test]:
    """Texts that the model may write, each after a prompt; none if it does not reason."""
    prompts: dict[str, Mapping[str, Any]] = {template.prompt(): {}}
    for variables in _SWITCHES:
        prompts.setdefault(template.prompt(**variables), variables)
    states = {prompt: _state(prompt, marks) for prompt in prompts}
    default = next(iter(prompts))
    is_on_demand = states[default] != "open" and "open" in states.values()
    is_switched = {"unmarked", "closed"} <= set(states.values())
    for prompt, variables in prompts.items():
        state = states[prompt]
        is_off = variables and not any(variables.values()) and states[default] != "unmarked"
        if state == "closed" or (state == "unmarked" and (is_off or is_on_demand)):
            yield Probe(_ANSWER, prompt, variables=variables), _has_no_plan
        elif state == "open" or is_switched or marks[0] in template.source:
            begin = "" if state == "open" else marks[0]
            text = f"{begin}{_PLAN}{marks[1]}{_ANSWER}"
            yield Probe(text, prompt, variables=variables), _has_plan
    if set(states.values()) == {"unmarked"} and not template.always_marks(marks):
        # Nothing says that such a model always reasons.
        yield Probe(_ANSWER, default), _has_no_plan


def _state(prompt: str, marks: Marks) -> Literal["open", "closed", "unmarked"]:
    tail = prompt.rpartition(_QUESTION)[2]
    begin, end = tail.rfind(marks[0]), tail.rfind(marks[1])
    if begin == end == -1:
        return "unmarked"
    return "open" if begin > end else "closed"


def _has_plan(message: AssistantMessage) -> bool:
    return message.reasoning.strip() == _PLAN and message.text.strip() == _ANSWER


def _has_no_plan(message: AssistantMessage) -> bool:
    return not message.reasoning and message.text.strip() == _ANSWER


def _is_probe_call(message: AssistantMessage) -> bool:
    if message.text.strip() or [call.name for call in message.calls] != [EXAMPLE_NAME]:
        return False
    try:
        return bool(json.loads(message.calls[0].arguments) == EXAMPLE_ARGUMENTS)
    except ValueError:
        return False


def _difference(message_text: str, answer: str) -> str:
    """What a message has where `answer` has its text; a mark that the cut divides is in it."""
    pairs = zip(message_text, answer, strict=False)
    begin = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    mark = message_text.rfind("<", 0, begin)
    if mark > message_text.rfind(">", 0, begin):
        begin = mark
    end = answer.rpartition(_ANSWER)[2]
    return message_text[begin:].removesuffix(end)


def _user() -> dict[str, Any]:
    return {"role": "user", "content": _QUESTION}


def _assistant() -> dict[str, Any]:
    return {"role": "assistant", "content": _ANSWER}
