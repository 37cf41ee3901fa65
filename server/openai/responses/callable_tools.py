"""The tools of a response -> the functions that its chat has, and back.

A tool of a namespace is a function with the namespace in its name, and a custom tool, whose input
is free text, is a function with one text. Tools that OpenAI's servers run are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine_adapter.seam.text import short_repr
from server.errors import InvalidField
from server.openai.responses.conversation import flat_name
from server.schema.bounds import too_many
from server.schema.responses import (
    ChosenFunction,
    CustomTool,
    FunctionTool,
    HostedTool,
    NamespaceTool,
    ResponsesRequest,
)
from server.schema.tools import MAX_TOOLS, Function

_FREE_TEXT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""The parameters of the function that a custom tool is."""


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that the model may call.

    Attributes:
        name: without its namespace.
        is_custom: its input is free text.
        has_grammar: a grammar, which is not enforced, describes that text.
        path: where it is in the body.
        function: what the model sees.
    """

    name: str
    namespace: str | None
    is_custom: bool
    has_grammar: bool
    path: str
    function: Function


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
    def paths(self) -> Sequence[str]:
        """Where they are in the body."""
        return [tool.path for tool in self.by_name.values()]

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


def callable_tools(body: ResponsesRequest) -> CallableTools:
    """The tools of a body. Raises `InvalidField` for too many, or two of one name."""
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
                param = f"{callable_tool.path}.name"
                raise InvalidField(param, f"{param}: another tool is called {name!r} too.")
            by_name[name] = callable_tool
            if callable_tool.has_grammar:
                ignored.append(f"{callable_tool.path}.format")
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
    is_custom = isinstance(tool, CustomTool)
    # Not validated again: with its namespace a name may be longer than OpenAI allows.
    function = Function.model_construct(
        name=name,
        description=description,
        parameters=_FREE_TEXT if isinstance(tool, CustomTool) else tool.parameters,
        strict=None if isinstance(tool, CustomTool) else tool.strict,
    )
    has_grammar = isinstance(tool, CustomTool) and tool.has_grammar
    return CallableTool(tool.name, namespace, is_custom, has_grammar, path, function)
