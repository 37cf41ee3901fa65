"""The body of `/v1/chat/completions`, and the chat that `/tokenize` also accepts."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from engine_adapter.types import StructuredOutput
from server.errors import InvalidField
from server.schema.base import MAX_FIELDS
from server.schema.generation_body import MAX_INT, GenerationBody
from server.schema.messages import Messages
from server.schema.tools import ToolChoice, Tools, call_constraint, check_choice, check_tools

TemplateVariables = Annotated[dict[str, Any], Field(max_length=MAX_FIELDS)]
"""Variables of the chat template."""


class ChatPromptFields(BaseModel):
    """How messages become a prompt."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    tools: Tools | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )


class ChatCompletionRequest(GenerationBody, ChatPromptFields):
    """A chat completion."""

    messages: Messages
    max_tokens: int | None = Field(None, ge=1, le=MAX_INT)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_INT)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_INT)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None

    @property
    def choice(self) -> ToolChoice:
        """`tool_choice` with OpenAI's default: `auto` with tools, `none` without."""
        if not self.tools:
            return "none"
        return self.tool_choice or "auto"

    def ignored_fields(self, *, strict: bool) -> tuple[str, ...]:
        """See `Body.ignored_fields`. A call that the model chooses to make has no constraint."""
        ignored = super().ignored_fields(strict=strict)
        if self.choice != "auto":
            return ignored
        unmet = [
            f"tools.{i}.function.strict"
            for i, tool in enumerate(self.tools or ())
            if tool.function.strict
        ]
        if unmet and strict:
            message = f"{unmet[0]} is not enforced with tool_choice 'auto'; leave it out."
            raise InvalidField(unmet[0], message, "unsupported_parameter")
        return (*ignored, *unmet)

    def structured_output(self) -> StructuredOutput | None:
        """The constraint of a call that must be made, otherwise that of the text.

        `response_format` says how text is formatted, and such a call has no text. Raises
        `InvalidField` as for other bodies, and for a choice that the tools do not allow.
        """
        tools = self.tools or ()
        check_tools(tools)
        check_choice(tools, self.tool_choice)
        of_text = super().structured_output()
        parallel = self.parallel_tool_calls is not False
        of_call = call_constraint(tools, self.choice, parallel=parallel)
        if of_text is not None:
            self._check_beside_tools(of_text)
        return of_call or of_text

    def _check_beside_tools(self, of_text: StructuredOutput) -> None:
        """Raises `InvalidField` if a constraint on the text and the tools exclude each other."""
        field = of_text.param.partition(".")[0]
        if self.choice == "auto":
            reason = "would make calls impossible; send another tool_choice, or leave it out"
            raise InvalidField(field, f"{field} beside tools with tool_choice 'auto' {reason}.")
        if self.choice != "none" and field != "response_format":
            message = f"{field} and a tool_choice that forces a call exclude each other."
            raise InvalidField(field, message)
