"""The calls of parsers for which vLLM has no structural tag, as such tags."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine_adapter.seam.parsing import NoCallGrammar

Node = dict[str, Any]
_IDENTIFIER = re.compile(r"[a-zA-Z]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a text of calls is written.

    Attributes:
        begin, end: the texts before the first call and after the last one.
        call: the text of a call up to its arguments; `{name}` is the tool's.
        call_end: the text after its arguments.
        between: the text between two calls; `None`: each call has `begin` and `end`.
        style: of the arguments; see `call_parameters.STYLES`.
    """

    begin: str
    call: str
    call_end: str
    end: str
    between: str | None = None
    style: str = "json"


_NAMED = '{{"name": "{name}", "arguments": '
_PARAMETERS = '{{"name": "{name}", "parameters": '
_PYTHON = ("{name}(", ")")

FORMS: Mapping[str, CallForm] = {
    "apertus": CallForm("<|tools_prefix|>[", '{{"{name}": ', "}", "]<|tools_suffix|>", ", "),
    "ernie45": CallForm("<tool_call>\n", _NAMED, "}", "\n</tool_call>"),
    "granite": CallForm("<|tool_call|>[", _NAMED, "}", "]", ", "),
    "granite4": CallForm("<tool_call>\n", _NAMED, "}", "\n</tool_call>"),
    "internlm": CallForm("<|action_start|><|plugin|>", _PARAMETERS, "}", "<|action_end|>"),
    "jamba": CallForm("<tool_calls>[\n", _NAMED, "}", "\n]</tool_calls>", ",\n"),
    "lfm2": CallForm("<|tool_call_start|>[", *_PYTHON, "]<|tool_call_end|>", ", ", style="python"),
    "seed_oss": CallForm(
        "<seed:tool_call>\n",
        "<function={name}>\n",
        "\n</function>",
        "\n</seed:tool_call>",
        style="seed_xml",
    ),
}
"""Parser -> the form of its calls, which can follow any text."""

_MISTRAL = CallForm("[TOOL_CALLS]", "{name}[ARGS]", "", "")
_OLDER_MISTRAL = CallForm("[TOOL_CALLS][", _NAMED, "}", "]", ", ")

WHOLE_FORMS: Mapping[str, Sequence[CallForm]] = {
    "llama4_pythonic": (
        CallForm("<|python_start|>[", *_PYTHON, "]<|python_end|>", ", ", style="python"),
        CallForm("[", *_PYTHON, "]", ", ", style="python"),
    ),
    "pythonic": (CallForm("[", *_PYTHON, "]", ", ", style="python"),),
}
"""Parser -> the forms of its calls, which are the whole text."""


def own_tag(
    parser: str, schemas: Mapping[str, Any], specials: Collection[str], *, single_call: bool
) -> Node | None:
    """A structural tag of the parser's calls; `None` if it has none here.

    Args:
        schemas: tool -> the schema of its arguments.
        specials: the tokenizer's special tokens.

    Raises:
        NoCallGrammar: the parser does not read the name of a tool.
    """

    def tags(form: CallForm) -> list[Node]:
        return _tags(form, schemas, single_call=single_call)

    if parser == "mistral":
        form = _MISTRAL if "[ARGS]" in specials else _OLDER_MISTRAL
        return _triggered("[TOOL_CALLS]", tags(form), single_call=single_call)
    if parser in FORMS:
        form = FORMS[parser]
        trigger = form.begin.strip().removesuffix("[")
        return _triggered(trigger, tags(form), single_call=single_call)
    if parser in WHOLE_FORMS:
        forms = WHOLE_FORMS[parser]
        elements = [tag for form in forms if _is_usable(form, specials) for tag in tags(form)]
        return {"type": "whole_calls", "content": {"type": "or", "elements": elements}}
    return None


def _is_usable(form: CallForm, specials: Collection[str]) -> bool:
    mark = form.begin.removesuffix("[")
    return not mark or mark in specials


def _triggered(trigger: str, tags: list[Node], *, single_call: bool) -> Node:
    return {
        "type": "triggered_tags",
        "triggers": [trigger],
        "tags": tags,
        "stop_after_first": single_call,
    }


def _tags(form: CallForm, schemas: Mapping[str, Any], *, single_call: bool) -> list[Node]:
    """A tag of each tool or, if calls are in a list, one tag."""
    calls = []
    for name, schema in schemas.items():
        if form.style == "python" and _IDENTIFIER.fullmatch(name) is None:
            raise NoCallGrammar(f"it does not read the name {name!r} of a tool")
        content = {"type": "json_schema", "style": form.style, "json_schema": schema}
        calls.append(_tag(form.call.format(name=name), content, form.call_end))
    if form.between is None:
        return [
            _tag(form.begin + call["begin"], call["content"], call["end"] + form.end)
            for call in calls
        ]
    call_list = {
        "type": "tags_with_separator",
        "tags": calls,
        "separator": form.between,
        "stop_after_first": single_call,
    }
    return [_tag(form.begin, call_list, form.end)]


def _tag(begin: str, content: Node, end: str) -> Node:
    return {"type": "tag", "begin": begin, "content": content, "end": end}
