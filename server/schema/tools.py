"""OpenAI's `tools` and `tool_choice`, and the JSON schema that holds a required call to them."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from engine_adapter.seam.schema_keywords import ANY_OBJECT
from engine_adapter.seam.text import clip
from engine_adapter.seam.types import ConstraintKind, StructuredOutput
from server.errors import InvalidField
from server.schema.base import Strict, UnicodeText
from server.schema.bounds import MAX_SCHEMA_CHARS, MAX_TOOL_NESTING, check_schema, too_many
from server.schema.structured import schema_constraint

MAX_TOOLS = 128
"""OpenAI's limit."""

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
"""OpenAI's limits of a tool's name."""

_SCHEMA_MAPS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
_VALUES = frozenset({"const", "enum", "default", "examples"})


class Function(Strict):
    """A function that the model may call. Without `parameters` it takes none, as at OpenAI."""

    name: Name
    description: UnicodeText | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: Function

    # The constraint on its arguments, once they are checked: large ones take a tenth of a second.
    _arguments: StructuredOutput | None = None

    def for_template(self) -> dict[str, Any]:
        """The tool as vLLM gives it to chat templates: unset fields are null, but no `strict`."""
        dumped = self.model_dump()
        if self.function.strict is None:
            del dumped["function"]["strict"]
        return dumped


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]
"""The tools of a request."""


class NamedFunction(Strict):
    """The name of a function in `tools`."""

    name: str


class NamedTool(Strict):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


def _form(value: Any) -> str:
    return "named" if isinstance(value, dict | NamedTool) else "word"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")]
    | Annotated[NamedTool, Tag("named")],
    Discriminator(_form),
]
"""Whether the model may or must call tools, or the one that it must call."""


def check_tools(tools: Sequence[Tool]) -> None:
    """Raises `InvalidField` for equal names, and for parameters that cannot be a schema."""
    names: set[str] = set()
    size = 0
    for i, tool in enumerate(tools):
        name, parameters = tool.function.name, tool.function.parameters
        if name in names:
            param = f"tools.{i}.function.name"
            raise InvalidField(param, f"{param}: another tool is called {name!r} too.")
        names.add(name)
        if not parameters:
            continue
        param = f"tools.{i}.function.parameters"
        if parameters.get("type", "object") != "object":
            kind = clip(parameters["type"])
            raise InvalidField(param, f"{param}: its type must be 'object', not {kind}.")
        if tool._arguments is None:
            check_schema(parameters, param, MAX_TOOL_NESTING)
        size += len(_constraint(i, tool).value)
        if size > MAX_SCHEMA_CHARS:
            reason = too_many("characters of JSON in the parameters of all tools", MAX_SCHEMA_CHARS)
            raise InvalidField(param, f"tools {reason}.")


def check_choice(tools: Sequence[Tool], choice: ToolChoice | None) -> None:
    """Raises `InvalidField` for a choice that needs a tool which is not there."""
    if not tools and (choice == "required" or isinstance(choice, NamedTool)):
        message = "tool_choice asks for a call, so `tools` must have at least one tool."
        raise InvalidField("tool_choice", message)
    if isinstance(choice, NamedTool):
        _index(tools, choice)


def call_constraint(
    tools: Sequence[Tool], choice: ToolChoice | None, *, parallel: bool
) -> StructuredOutput | None:
    """The constraint on the text of a required or named call; `None` for other choices.

    A named call is its arguments. Required calls are an array of objects with `name` and
    `parameters`, as vLLM generates them. Tools and choice must be checked.
    """
    if isinstance(choice, NamedTool):
        index = _index(tools, choice)
        return _constraint(index, tools[index])
    if choice != "required":
        return None
    arguments = {tool.function.name: _constraint(i, tool) for i, tool in enumerate(tools)}
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [_call(name) for name in arguments]},
        "$defs": {
            name: _relocated(json.loads(constraint.value), f"#/$defs/{name}")
            for name, constraint in arguments.items()
        },
    }
    if not parallel:
        schema["maxItems"] = 1
    unenforced = dict.fromkeys(word for of in arguments.values() for word in of.unenforced)
    params = [constraint.param for constraint in arguments.values()]
    return StructuredOutput(
        ConstraintKind.JSON_SCHEMA,
        json.dumps(schema),
        param=params[0] if len(params) == 1 else "tools",
        unenforced=tuple(unenforced),
    )


def call_schemas(tools: Sequence[Tool]) -> dict[str, str]:
    """Tool -> the JSON schema to which a call that the model chooses to make is held.

    It is that of a strict tool, and any object for another one. Tools must be checked.
    """
    return {
        tool.function.name: _constraint(i, tool).value if tool.function.strict else ANY_OBJECT
        for i, tool in enumerate(tools)
    }


def _index(tools: Sequence[Tool], choice: NamedTool) -> int:
    name = choice.function.name
    for i, tool in enumerate(tools):
        if tool.function.name == name:
            return i
    param = "tool_choice.function.name"
    raise InvalidField(param, f"{param}: `tools` has no tool {clip(name)}.")


def _call(name: str) -> dict[str, Any]:
    """The schema of a call."""
    return {
        "type": "object",
        "properties": {"name": {"enum": [name]}, "parameters": {"$ref": f"#/$defs/{name}"}},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _constraint(index: int, tool: Tool) -> StructuredOutput:
    """The constraint on the arguments of tool `index`, which are always an object; made once."""
    if tool._arguments is not None:
        return tool._arguments
    param = f"tools.{index}.function.parameters"
    given = tool.function.parameters
    schema: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    if given:
        # `$id` would make references relative to itself; `$schema` belongs to a whole document.
        kept = {key: value for key, value in given.items() if key not in ("$id", "$schema")}
        schema = {"type": "object", **kept}
    tool._arguments = schema_constraint(schema, param, strict=bool(tool.function.strict))
    return tool._arguments


def _relocated(node: Any, pointer: str, *, is_map: bool = False) -> Any:
    """A schema's copy whose references to itself are below `pointer` in another document.

    Args:
        is_map: the keys of `node` are names, not keywords.
    """
    if isinstance(node, list):
        return [_relocated(item, pointer) for item in node]
    if not isinstance(node, dict):
        return node
    moved: dict[str, Any] = {}
    for key, value in node.items():
        if not is_map and key == "$ref" and isinstance(value, str) and value.startswith("#"):
            moved[key] = pointer + value[1:]
        elif not is_map and key in _VALUES:
            moved[key] = value
        else:
            moved[key] = _relocated(value, pointer, is_map=not is_map and key in _SCHEMA_MAPS)
    return moved
