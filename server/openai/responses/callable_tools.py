"""The tools of a response -> the functions that its chat has, and back.

A tool of a namespace is a function with the namespace in its name, and a custom tool, whose input
is a text, is a function with one text. Tools that OpenAI's servers run are left out.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine_adapter.seam.schema_keywords import relax
from engine_adapter.seam.text import short_repr
from engine_adapter.seam.types import ConstraintKind, StructuredOutput
from server.errors import InvalidField
from server.openai.function_tools import FunctionPath
from server.openai.responses.conversation import flat_name
from server.schema.bounds import too_many
from server.schema.responses import (
    ChosenFunction,
    CustomTool,
    FunctionTool,
    GrammarFormat,
    HostedTool,
    NamespaceTool,
    ResponsePrompt,
)
from server.schema.tools import MAX_TOOLS, Function, NamedTool, ToolChoice


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that the model may call.

    Attributes:
        name: without its namespace.
        is_custom: its input is a text.
        lark: a grammar of that text that only a call which must be made can be held to.
        path: where it is in the body.
        function: what the model sees.
        writes_text: the model writes that text as it is, not an object with it.
    """

    name: str
    namespace: str | None
    is_custom: bool
    lark: StructuredOutput | None
    path: FunctionPath
    function: Function
    writes_text: bool = False


@dataclass(frozen=True, slots=True)
class CallableTools:
    """The tools of a response.

    Attributes:
        by_name: those that the model may call, by the names under which it sees them.
        ignored: the fields of what is left out.
    """

    by_name: Mapping[str, CallableTool]
    ignored: tuple[str, ...]

    @property
    def functions(self) -> Sequence[Function]:
        """What the model sees."""
        return [tool.function for tool in self.by_name.values()]

    @property
    def paths(self) -> Sequence[FunctionPath]:
        """Where they are in the body."""
        return [tool.path for tool in self.by_name.values()]

    def written(self, choice: ToolChoice) -> Mapping[str, CallableTool]:
        """`by_name`, with how the model writes their calls under a choice."""
        if not isinstance(choice, NamedTool):
            return self.by_name
        name = choice.function.name
        tool = self.by_name[name]
        return {**self.by_name, name: replace(tool, writes_text=tool.lark is not None)}

    def find(self, choice: ChosenFunction, param: str) -> str:
        """The name under which the model sees a chosen tool.

        A tool of a namespace may be named without it, if no other tool has its name. Raises
        `InvalidField`, naming `param`.
        """
        if choice.name in self.by_name:
            return choice.name
        names = [name for name, tool in self.by_name.items() if tool.name == choice.name]
        if len(names) == 1:
            return names[0]
        if names:
            message = f"{param}: several tools are called so; name one of {', '.join(names[:9])}."
            raise InvalidField(param, message)
        raise InvalidField(param, f"{param}: tools has no function {short_repr(choice.name)}.")


def callable_tools(body: ResponsePrompt) -> CallableTools:
    """The tools of a body.

    Raises `InvalidField` for too many, two of one name, or a grammar that cannot be enforced.
    """
    by_name: dict[str, CallableTool] = {}
    ignored: list[str] = []
    for number, tool in enumerate(body.tools or ()):
        path = f"tools.{number}"
        if isinstance(tool, HostedTool):
            ignored.append(path)
            continue
        for callable_tool in _flattened(tool, path):
            name = callable_tool.function.name
            if name in by_name:
                param = f"{callable_tool.path.function}.name"
                raise InvalidField(param, f"{param}: another tool is called {name!r} too.")
            by_name[name] = callable_tool
    if len(by_name) > MAX_TOOLS:
        reason = too_many("functions in all namespaces", MAX_TOOLS, len(by_name))
        raise InvalidField("tools", f"tools {reason}.")
    return CallableTools(by_name, tuple(ignored))


def _flattened(
    tool: FunctionTool | CustomTool | NamespaceTool, path: str
) -> Iterator[CallableTool]:
    if not isinstance(tool, NamespaceTool):
        yield _callable(tool, None, path)
        return
    for number, inner in enumerate(tool.tools):
        yield _callable(inner, tool, f"{path}.tools.{number}")


def _callable(
    tool: FunctionTool | CustomTool, space: NamespaceTool | None, path: str
) -> CallableTool:
    namespace, name, description = None, tool.name, tool.description
    if space is not None:
        namespace, name = space.name, flat_name(space.name, name)
        # The model sees no namespace, so each of its tools has what is said of it.
        description = "\n".join(text for text in (space.description, description) if text) or None
    function_path, lark = FunctionPath.at(path), None
    parameters: dict[str, Any] | None
    if isinstance(tool, CustomTool):
        definition = f"{path}.format.definition"
        function_path = FunctionPath(path, definition, f"{path}.format")
        parameters, strict = _text_parameters(tool.grammar, definition)
        if tool.grammar is not None and tool.grammar.syntax == "lark":
            lark = StructuredOutput(
                ConstraintKind.GRAMMAR, tool.grammar.definition, param=definition
            )
    else:
        parameters, strict = tool.parameters, tool.strict
    # Not validated again: with its namespace a name may be longer than OpenAI allows.
    function = Function.model_construct(
        name=name, description=description, parameters=parameters, strict=strict
    )
    is_custom = isinstance(tool, CustomTool)
    return CallableTool(tool.name, namespace, is_custom, lark, function_path, function)


def _text_parameters(
    grammar: GrammarFormat | None, param: str
) -> tuple[dict[str, Any], bool | None]:
    """The parameters of the function that a custom tool is, and whether it is strict.

    A regular expression is a pattern of its only text, so calls are held to it as to a schema.
    """
    text: dict[str, Any] = {"type": "string"}
    is_strict = grammar is not None and grammar.syntax == "regex"
    if grammar is not None and is_strict:
        text["pattern"] = f"^(?:{_unanchored(grammar.definition)})$"
        if relax(dict(text)):
            reason = "has look-around, a back-reference or a word boundary"
            message = f"{param} {reason}, which cannot be enforced."
            raise InvalidField(param, message, "unsupported_parameter")
    parameters = {
        "type": "object",
        "properties": {"input": text},
        "required": ["input"],
        "additionalProperties": False,
    }
    return parameters, is_strict or None


def _unanchored(regex: str) -> str:
    """A regular expression without `^` and `$` around it: it is to match a whole text anyway."""
    regex = regex.removeprefix("^")
    if re.search(r"(?<!\\)(?:\\\\)*\$$", regex):
        regex = regex.removesuffix("$")
    return regex
