"""The bodies of `/v1/chat/completions`, of its batches, and of `/tokenize` and `/detokenize`."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from server.schema.base import MAX_FIELDS, Body, check_unicode
from server.schema.generation_body import MAX_INT, MAX_PROMPTS, GenerationBody
from server.schema.messages import Messages
from server.schema.processor_arguments import ProcessorArguments
from server.schema.tools import ToolChoiceField, Tools

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model reasons."""

TemplateVariables = Annotated[dict[str, Any], Field(max_length=MAX_FIELDS)]
"""Variables of the chat template."""


MAX_DOCUMENTS = 1024
"""The most documents of a chat."""

Documents = Annotated[
    list[Annotated[dict[str, str], Field(max_length=MAX_FIELDS)]],
    Field(max_length=MAX_DOCUMENTS, fail_fast=True),
]
"""Texts that a template for retrieval shows to the model, as in vLLM."""

MAX_TEMPLATE_CHARS = 100_000
"""The most characters of a request's own chat template."""

Template = Annotated[
    str, Field(min_length=1, max_length=MAX_TEMPLATE_CHARS), AfterValidator(check_unicode)
]
"""A chat template of a request's own."""


class ChatPromptFields(BaseModel):
    """How messages become a prompt."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    tools: Tools | None = None
    reasoning_effort: ReasoningEffort | None = None
    mm_processor_kwargs: ProcessorArguments | None = None


class ChatFields(GenerationBody, ChatPromptFields):
    """A chat completion without its messages."""

    max_tokens: int | None = Field(None, ge=1, le=MAX_INT)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_INT)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_INT)
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    documents: Documents | None = None
    chat_template: Template | None = None


class ChatCompletionRequest(ChatFields):
    """A chat completion."""

    messages: Messages


class ChatBatchRequest(ChatFields):
    """Several chats with the same options, as in vLLM."""

    messages: Annotated[list[Messages], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]


class TokenizeRequest(Body, ChatPromptFields):
    """A text (`prompt`) or a chat (`messages`), exactly one of the two.

    The default of `add_special_tokens` is true for a text, and false for a chat, because its
    template writes the special tokens.
    """

    prompt: str | None = None
    messages: Messages | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    """Token ids to convert to text."""

    tokens: Annotated[list[int], Field(fail_fast=True)]
