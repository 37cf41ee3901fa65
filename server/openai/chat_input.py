"""A chat as it is generated, of whichever endpoint: made once from its body, and checked."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine_adapter.seam.text import short_repr
from engine_adapter.seam.types import ConstraintKind, StructuredOutput
from server.errors import InvalidField
from server.media.sources import MediaSource
from server.openai.field_names import CHAT, FieldNames
from server.openai.function_tools import FunctionTools, chat_paths, checked_tools
from server.schema.chat import ChatFields, ChatPromptFields, ReasoningEffort
from server.schema.messages import Message
from server.schema.processor_arguments import ProcessorArguments
from server.schema.structured import constraint_field
from server.schema.tools import ChatAllowedTools


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """What the chat template renders.

    Attributes:
        message_names: the body's field that each message comes from.
        variables: the template's own.
        tools: in OpenAI's format.
        documents: that a template for retrieval shows.
        template: the request's own; `None` renders the server's.
        processor_arguments: of its media; `None` are the server's.
    """

    messages: Sequence[Message]
    message_names: Sequence[str]
    names: FieldNames = CHAT
    variables: dict[str, Any] = field(default_factory=dict)
    tools: Sequence[dict[str, Any]] = ()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: Sequence[dict[str, str]] = ()
    template: str | None = None
    processor_arguments: ProcessorArguments | None = None

    def media_sources(self) -> list[MediaSource]:
        """The pictures, recordings and videos, in their order."""
        return [
            MediaSource(
                part.modality,
                f"{name}.{self.names.media[part.type].format(part=number)}",
                part.url,
                part.data,
            )
            for name, message in zip(self.message_names, self.messages, strict=True)
            for number, part in message.media.items()
        ]

    def texts(self) -> Iterator[tuple[str, Any]]:
        """What has texts of the client: the name of its field, and its value."""
        yield from zip(self.message_names, self.messages, strict=True)
        yield "tools", self.tools
        yield "chat_template_kwargs", self.variables
        yield "documents", self.documents


@dataclass(frozen=True, slots=True)
class ChatInput:
    """What a chat is generated from, besides the fields that have one name in all endpoints.

    Attributes:
        prompt: what is rendered.
        tools: what the model may call.
        constraint: on the text; of a call that must be made, if there is one.
        max_tokens: the client's limit, in its field `max_tokens_name`.
        num_top_logprobs: alternatives per token; `None` without log probabilities.
        effort: of reasoning.
        thinking_token_budget: the most tokens of reasoning; `None` or -1 without a limit.
        shows_reasoning: the message has it.
        tokens_as_ids: log probabilities name tokens by their ids.
        ignored: fields of the body that are ignored with notice, besides unknown ones.
    """

    prompt: ChatPrompt
    tools: FunctionTools
    constraint: StructuredOutput | None
    max_tokens: int | None
    max_tokens_name: str
    num_top_logprobs: int | None
    effort: ReasoningEffort | None = None
    thinking_token_budget: int | None = None
    shows_reasoning: bool = True
    tokens_as_ids: bool = False
    ignored: tuple[str, ...] = ()

    def with_messages(self, messages: Sequence[Message], param: str) -> "ChatInput":
        """The same for other messages, which the body has in the field `param`."""
        names = replace(self.names, messages=param)
        message_names = _message_names(param, messages)
        prompt = replace(self.prompt, messages=messages, message_names=message_names, names=names)
        return replace(self, prompt=prompt)

    @property
    def names(self) -> FieldNames:
        """How the endpoint names its fields."""
        return self.prompt.names


def chat_input(body: ChatFields, messages: Sequence[Message]) -> ChatInput:
    """That of a chat completion. Raises `InvalidField`."""
    tools = _tools(body)
    max_tokens, max_tokens_name = _max_tokens(body)
    prompt = chat_prompt(messages, body, tools)
    return ChatInput(
        prompt=replace(prompt, documents=body.documents or (), template=body.chat_template),
        tools=tools,
        constraint=constraint_with_tools(body.structured_output(), tools, CHAT),
        max_tokens=max_tokens,
        max_tokens_name=max_tokens_name,
        num_top_logprobs=_num_top_logprobs(body),
        effort=body.reasoning_effort,
        thinking_token_budget=body.thinking_token_budget,
        shows_reasoning=body.include_reasoning is not False,
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
    )


def _tools(body: ChatFields) -> FunctionTools:
    """What the model may call. Of `allowed_tools`, it sees only those allowed."""
    functions, choice = [tool.function for tool in body.tools or ()], body.tool_choice
    tools = checked_tools(
        functions,
        chat_paths(len(functions)),
        None if isinstance(choice, ChatAllowedTools) else choice,
        CHAT,
        parallel=body.parallel_tool_calls,
    )
    if not isinstance(choice, ChatAllowedTools):
        return tools
    allowed, names = choice.allowed_tools, {function.name for function in functions}
    for number, tool in enumerate(allowed.tools):
        if tool.function.name not in names:
            param = f"tool_choice.allowed_tools.tools.{number}.function.name"
            name = short_repr(tool.function.name)
            raise InvalidField(param, f"{param}: `tools` has no tool {name}.")
    return tools.only({tool.function.name for tool in allowed.tools}, allowed.mode)


def _message_names(param: str, messages: Sequence[Message]) -> list[str]:
    return [f"{param}.{number}" for number in range(len(messages))]


def chat_prompt(
    messages: Sequence[Message], fields: ChatPromptFields, tools: FunctionTools
) -> ChatPrompt:
    """The prompt of a body with a chat's fields. Raises `InvalidField`."""
    continues = bool(fields.continue_final_message)
    if continues and fields.add_generation_prompt:
        message = "continue_final_message and add_generation_prompt exclude each other."
        raise InvalidField("continue_final_message", message)
    return ChatPrompt(
        messages,
        _message_names("messages", messages),
        variables=template_variables(fields.chat_template_kwargs, fields.reasoning_effort, CHAT),
        tools=tools.for_template(),
        # If the model continues the last message, the template must not open a new one.
        add_generation_prompt=not continues and fields.add_generation_prompt is not False,
        continue_final_message=continues,
        add_special_tokens=bool(fields.add_special_tokens),
        processor_arguments=fields.mm_processor_kwargs,
    )


def template_variables(
    variables: dict[str, Any] | None, effort: ReasoningEffort | None, names: FieldNames
) -> dict[str, Any]:
    """The template's own variables. The effort of reasoning is one of them, as in vLLM.

    Raises `InvalidField` for two efforts.
    """
    variables = dict(variables or {})
    if effort is None:
        return variables
    if variables.get("reasoning_effort", effort) != effort:
        message = f"{names.effort} and chat_template_kwargs.reasoning_effort differ; send one."
        raise InvalidField(names.effort, message)
    return {"enable_thinking": effort != "none", **variables, "reasoning_effort": effort}


def constraint_with_tools(
    of_text: StructuredOutput | None, tools: FunctionTools, names: FieldNames
) -> StructuredOutput | None:
    """The constraint of a call that must be made, otherwise that of the text.

    The format says how text is formatted, and such a call has no text. Beside calls that the model
    may choose, it is that of a text without calls. Raises `InvalidField` if they exclude each
    other.
    """
    if of_text is not None and tools.choice != "none":
        is_json = of_text.kind in (ConstraintKind.JSON_OBJECT, ConstraintKind.JSON_SCHEMA)
        if tools.choice == "auto":
            if not is_json:
                reason = "must be JSON or a JSON schema; send another tool_choice, or leave it out"
                param = of_text.param
                message = f"{param}: beside tools with tool_choice 'auto', the format {reason}."
                raise InvalidField(param, message)
        elif (field_name := constraint_field(of_text.param, names.format)) != names.format:
            message = f"{field_name} and a tool_choice that forces a call exclude each other."
            raise InvalidField(field_name, message)
    return tools.forced_call() or of_text


def _num_top_logprobs(body: ChatFields) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidField("top_logprobs", "top_logprobs requires `logprobs` to be true.")
    return None


def _max_tokens(body: ChatFields) -> tuple[int | None, str]:
    """The limit and the field that sets it; `None` is up to the end of the context."""
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        message = "max_tokens and max_completion_tokens are both given and differ; send one."
        raise InvalidField("max_completion_tokens", message)
    return (old, "max_tokens") if new is None else (new, "max_completion_tokens")
