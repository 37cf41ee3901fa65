"""The body of `/v1/chat/completions`, and the messages that `/tokenize` also accepts."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from server.schema.generation_body import MAX_INT, GenerationBody, TextPart


class Message(BaseModel):
    """A message of a chat; undeclared fields are passed to the chat template unchanged."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates expect it: its content is one string.

        `developer` is OpenAI's newer name of `system`; templates know the older name.
        """
        content = self.content
        if isinstance(content, list):
            content = "\n".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        return {**(self.model_extra or {}), "role": role, "content": content}


def _has_content(message: Message) -> Message:
    if message.content is None and message.role != "assistant":
        raise ValueError(f"a message with the role {message.role} needs content")
    return message


Messages = Annotated[list[Annotated[Message, AfterValidator(_has_content)]], Field(min_length=1)]
"""At least one message."""


class ChatPromptFields(BaseModel):
    """How messages become a prompt."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
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
