"""OpenAI's `tools` and `tool_choice`."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from server.schema.base import Strict, UnicodeText

MAX_TOOLS = 128
"""OpenAI's limit."""

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
"""OpenAI's limits of a tool's name."""


class Function(Strict):
    """A function that the model may call. Without `parameters` it takes none, as at OpenAI."""

    name: Name
    description: UnicodeText | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def for_template(self) -> dict[str, Any]:
        """The tool as vLLM gives it to chat templates: unset fields are null, but no `strict`."""
        function: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        if self.strict is not None:
            function["strict"] = self.strict
        return {"type": "function", "function": function}


class Tool(Strict):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: Function


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]
"""The tools of a request."""


class NamedFunction(Strict):
    """The name of a function in `tools`."""

    name: str


class NamedTool(Strict):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool
"""Whether the model may or must call tools, or the one that it must call."""


class ChatAllowedSubset(Strict):
    """The tools of which some (`auto`) or at least one (`required`) may be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class ChatAllowedTools(Strict):
    """OpenAI's choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: ChatAllowedSubset


def _form(value: Any) -> str:
    if isinstance(value, ChatAllowedTools):
        return "allowed"
    if isinstance(value, dict):
        return "allowed" if value.get("type") == "allowed_tools" else "named"
    return "named" if isinstance(value, NamedTool) else "word"


ToolChoiceField = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")]
    | Annotated[NamedTool, Tag("named")]
    | Annotated[ChatAllowedTools, Tag("allowed")],
    Discriminator(_form),
]
"""A body's `tool_choice`."""
