"""The functions that a model may call, the choice among them, and the schemas of calls."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine_adapter.seam.schema_keywords import ANY_OBJECT
from engine_adapter.seam.text import short_repr
from engine_adapter.seam.types import ConstraintKind, StructuredOutput
from server.errors import InvalidField
from server.openai.field_names import FieldNames
from server.schema.bounds import MAX_SCHEMA_CHARS, MAX_TOOL_NESTING, check_schema, too_many
from server.schema.structured import schema_constraint
from server.schema.tools import Function, NamedTool, ToolChoice

_SCHEMA_MAPS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
_VALUES = frozenset({"const", "enum", "default", "examples"})


@dataclass(frozen=True, slots=True)
class FunctionPath:
    """Where a function is in the body, for errors and for what is ignored of it.

    Attributes:
        function: the function itself.
        parameters: what its arguments are held to.
        strict: what asks that chosen calls are held to that.
    """

    function: str
    parameters: str
    strict: str

    @classmethod
    def at(cls, function: str, parameters: str = "parameters") -> "FunctionPath":
        """That of a function which has its schema in the field `parameters`."""
        return cls(function, f"{function}.{parameters}", f"{function}.strict")


@dataclass(frozen=True, slots=True)
class FunctionTools:
    """Checked functions and the choice among them. See `checked_tools`.

    Attributes:
        paths: where each function is in the body.
        arguments: the constraint on the arguments of each function, which are always an object.
        choice: OpenAI's, with its default.
        single: at most one call.
    """

    functions: Sequence[Function] = ()
    paths: Sequence[FunctionPath] = ()
    arguments: Sequence[StructuredOutput] = ()
    choice: ToolChoice = "none"
    single: bool = False

    def only(self, names: Collection[str], choice: ToolChoice) -> "FunctionTools":
        """The functions with these names, and another choice."""
        rows = [
            (function, path, arguments)
            for function, path, arguments in zip(
                self.functions, self.paths, self.arguments, strict=True
            )
            if function.name in names
        ]
        functions, paths, arguments = zip(*rows, strict=True)
        return FunctionTools(functions, paths, arguments, choice, self.single)

    def with_arguments(self, name: str, arguments: StructuredOutput) -> "FunctionTools":
        """The functions, the arguments of one of them held to another constraint."""
        names = [function.name for function in self.functions]
        place = names.index(name)
        constraints = [*self.arguments[:place], arguments, *self.arguments[place + 1 :]]
        return replace(self, arguments=constraints)

    def for_template(self) -> list[dict[str, Any]]:
        """The tools as chat templates get them."""
        return [function.for_template() for function in self.functions]

    def forced_call(self) -> StructuredOutput | None:
        """The constraint on the text of a required or named call; `None` for other choices.

        A named call is its arguments. Required calls are an array of objects with `name` and
        `parameters`, as vLLM generates them.
        """
        if isinstance(self.choice, NamedTool):
            names = [function.name for function in self.functions]
            return self.arguments[names.index(self.choice.function.name)]
        if self.choice != "required":
            return None
        by_name = {
            function.name: arguments
            for function, arguments in zip(self.functions, self.arguments, strict=True)
        }
        schema: dict[str, Any] = {
            "type": "array",
            "minItems": 1,
            "items": {"anyOf": [_call(name) for name in by_name]},
            "$defs": {
                name: _relocated(json.loads(arguments.value), f"#/$defs/{name}")
                for name, arguments in by_name.items()
            },
        }
        if self.single:
            schema["maxItems"] = 1
        keywords = (word for arguments in self.arguments for word in arguments.unenforced)
        return StructuredOutput(
            ConstraintKind.JSON_SCHEMA,
            json.dumps(schema),
            param=self.arguments[0].param if len(self.arguments) == 1 else "tools",
            unenforced=tuple(dict.fromkeys(keywords)),
        )

    def call_schemas(self) -> dict[str, str]:
        """Function -> the JSON schema to which a call that the model chooses to make is held.

        It is that of a strict function, and any object for another one.
        """
        return {
            function.name: arguments.value if function.strict else ANY_OBJECT
            for function, arguments in zip(self.functions, self.arguments, strict=True)
        }


def checked_tools(
    functions: Sequence[Function],
    paths: Sequence[FunctionPath],
    choice: ToolChoice | None,
    names: FieldNames,
    *,
    parallel: bool | None = None,
) -> FunctionTools:
    """The functions with the choice; by default `auto` with functions, and `none` without.

    Args:
        paths: where each function is in the body.

    Raises:
        InvalidField: two functions have one name, parameters cannot be a schema, or the choice
            needs a function which is not there.
    """
    if choice == "required" or isinstance(choice, NamedTool):
        _check_choice(functions, choice, names)
    if not functions:
        return FunctionTools(single=parallel is False)
    arguments = _checked_arguments(functions, paths)
    return FunctionTools(functions, paths, arguments, choice or "auto", parallel is False)


def chat_paths(count: int) -> list[FunctionPath]:
    """Where the functions of a chat's body are."""
    return [FunctionPath.at(f"tools.{number}.function") for number in range(count)]


def _check_choice(functions: Sequence[Function], choice: ToolChoice, names: FieldNames) -> None:
    if not functions:
        message = "tool_choice asks for a call, so `tools` must have at least one tool."
        raise InvalidField("tool_choice", message)
    if isinstance(choice, NamedTool):
        name = choice.function.name
        if all(function.name != name for function in functions):
            param = names.chosen_function
            raise InvalidField(param, f"{param}: `tools` has no tool {short_repr(name)}.")


def _checked_arguments(
    functions: Sequence[Function], paths: Sequence[FunctionPath]
) -> list[StructuredOutput]:
    """The constraints on the arguments of the functions."""
    arguments: list[StructuredOutput] = []
    names_before: set[str] = set()
    size = 0
    for function, path in zip(functions, paths, strict=True):
        if function.name in names_before:
            param = f"{path.function}.name"
            raise InvalidField(param, f"{param}: another tool is called {function.name!r} too.")
        names_before.add(function.name)
        constraint = _arguments(function, path.parameters)
        arguments.append(constraint)
        size += len(constraint.value) if function.parameters else 0
        if size > MAX_SCHEMA_CHARS:
            reason = too_many("characters of JSON in the parameters of all tools", MAX_SCHEMA_CHARS)
            raise InvalidField(constraint.param, f"tools {reason}.")
    return arguments


def _arguments(function: Function, param: str) -> StructuredOutput:
    """The constraint on a function's arguments. Raises `InvalidField`."""
    parameters = function.parameters
    schema: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    if parameters:
        if parameters.get("type", "object") != "object":
            kind = short_repr(parameters["type"])
            raise InvalidField(param, f"{param}: its type must be 'object', not {kind}.")
        check_schema(parameters, param, MAX_TOOL_NESTING)
        # `$id` would make references relative to itself; `$schema` belongs to a whole document.
        keywords = {k: value for k, value in parameters.items() if k not in ("$id", "$schema")}
        schema = {"type": "object", **keywords}
    return schema_constraint(schema, param, strict=bool(function.strict))


def _call(name: str) -> dict[str, Any]:
    """The schema of a call."""
    return {
        "type": "object",
        "properties": {"name": {"enum": [name]}, "parameters": {"$ref": f"#/$defs/{name}"}},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


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
