"""The body of `/v1/chat/completions`, and the chat that `/tokenize` also accepts."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from engine_adapter.seam.types import ConstraintKind, StructuredOutput
from server.errors import InvalidField
from server.schema.base import MAX_FIELDS
from server.schema.generation_body import MAX_INT, GenerationBody
from server.schema.messages import Messages
from server.schema.tools import ToolChoice, Tools, call_constraint, check_choice, check_tools

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model reasons."""

TemplateVariables = Annotated[dict[str, Any], Field(max_length=MAX_FIELDS)]
"""Variables of the chat template."""


class ChatPromptFields(BaseModel):
    """How messages become a prompt."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    tools: Tools | None = None
    reasoning_effort: ReasoningEffort | None = None


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

    def structured_output(self) -> StructuredOutput | None:
        """The constraint of a call that must be made, otherwise that of the text.

        `response_format` says how text is formatted, and such a call has no text. Beside calls
        that the model may choose, it is that of a text without calls. Raises `InvalidField` as for
        other bodies, and for a choice that the tools do not allow.
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
        is_json = of_text.kind in (ConstraintKind.JSON_OBJECT, ConstraintKind.JSON_SCHEMA)
        if self.choice == "auto":
            if not is_json:
                reason = "must be JSON or a JSON schema; send another tool_choice, or leave it out"
                param = of_text.param
                message = f"{param}: beside tools with tool_choice 'auto', the format {reason}."
                raise InvalidField(param, message)
        elif self.choice != "none" and field != "response_format":
            message = f"{field} and a tool_choice that forces a call exclude each other."
            raise InvalidField(field, message)
