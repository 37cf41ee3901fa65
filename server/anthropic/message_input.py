"""The body of `/v1/messages` -> the input of the chat that generates its answer."""

import json
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from engine_adapter.seam.text import short_repr
from server.errors import InvalidField
from server.openai.chat_input import (
    ChatInput,
    ChatPrompt,
    constraint_with_tools,
    template_variables,
)
from server.openai.field_names import FieldNames
from server.openai.function_tools import FunctionPath, FunctionTools, checked_tools
from server.schema import anthropic as schema
from server.schema.chat import ReasoningEffort
from server.schema.messages import checked_messages
from server.schema.tools import Function, NamedFunction, NamedTool, ToolChoice

NAMES = FieldNames(
    chosen_function="tool_choice.name",
    format=schema.MessagesRequest.format_field,
    effort="output_config.effort",
    thinking_budget="thinking.budget_tokens",
    other_choices="'any', 'tool' and 'none'",
    media={"image_url": "content"},
)
"""How a message names the fields of its chat."""

_NO_EFFECT = ("cache_control",)
"""Fields of a tool that ask for what the prefix cache does by itself."""

_CHOICES: dict[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}


def message_input(body: schema.MessagesRequest) -> ChatInput:
    """The input of a message. Raises `InvalidField`."""
    tools, ignored = _tools(body)
    return ChatInput(
        prompt=message_prompt(body, tools),
        tools=tools,
        constraint=constraint_with_tools(body.structured_output(), tools, NAMES),
        max_tokens=body.max_tokens,
        max_tokens_name="max_tokens",
        num_top_logprobs=None,
        effort=_effort(body),
        thinking_token_budget=None if body.thinking is None else body.thinking.budget_tokens,
        shows_reasoning=_shows_reasoning(body.thinking),
        ignored=tuple(ignored),
    )


def count_prompt(body: schema.CountTokensRequest) -> tuple[ChatPrompt, tuple[str, ...]]:
    """The prompt whose tokens are counted, and the ignored fields. Raises `InvalidField`."""
    tools, ignored = _tools(body)
    return message_prompt(body, tools), tuple(ignored)


def _shows_reasoning(thinking: schema.Thinking | None) -> bool:
    return thinking is None or (thinking.type != "disabled" and thinking.display != "omitted")


def message_prompt(
    body: schema.MessagesRequest | schema.CountTokensRequest, tools: FunctionTools
) -> ChatPrompt:
    """The prompt of a body. Raises `InvalidField`."""
    pairs = list(_messages(body))
    names = [name for name, _ in pairs]
    variables = {}
    if body.thinking is not None:
        variables["enable_thinking"] = body.thinking.type != "disabled"
    # The answer continues what the client has written of it.
    continues = body.messages[-1].role == "assistant"
    return ChatPrompt(
        checked_messages([message for _, message in pairs], names, NAMES.messages),
        names,
        NAMES,
        variables={**template_variables(None, _effort(body), NAMES), **variables},
        tools=tools.for_template(),
        add_generation_prompt=not continues,
        continue_final_message=continues,
    )


def _effort(
    body: schema.MessagesRequest | schema.CountTokensRequest,
) -> ReasoningEffort | None:
    return None if body.output_config is None else body.output_config.effort


def _messages(
    body: schema.MessagesRequest | schema.CountTokensRequest,
) -> Iterator[tuple[str, dict[str, object]]]:
    """The messages of the chat, each with the field that it comes from."""
    if body.system:
        yield "system", {"role": "system", "content": _text(body.system)}
    call_ids: set[str] = set()
    for number, message in enumerate(body.messages):
        name = f"messages.{number}"
        blocks = message.content
        if isinstance(blocks, str):
            blocks = [schema.TextBlock(type="text", text=blocks)]
        if message.role == "assistant":
            call_ids.update(block.id for block in blocks if isinstance(block, schema.ToolUseBlock))
            parts = _answers(blocks, name)
        else:
            if message.role == "user":
                _check_results(blocks, name, call_ids)
            parts = _input_messages(message.role, blocks, name)
        for part in parts:
            yield name, part


def _check_results(blocks: Sequence[schema.Block], name: str, call_ids: Container[str]) -> None:
    """Raises `InvalidField` for the result of a call that no message before has."""
    for number, block in enumerate(blocks):
        if isinstance(block, schema.ToolResultBlock) and block.tool_use_id not in call_ids:
            param = f"{name}.content.{number}.tool_use_id"
            reason = f"no message before has a tool_use with the id {short_repr(block.tool_use_id)}"
            raise InvalidField(param, f"{param}: {reason}.")


def _input_messages(
    role: str, blocks: Sequence[schema.Block], name: str
) -> Iterator[dict[str, object]]:
    """Results of tools are messages of their own; the texts between them are one each."""
    parts: list[schema.TextBlock | schema.ImageBlock] = []
    for number, block in enumerate(blocks):
        if isinstance(block, schema.TextBlock):
            parts.append(block)
            continue
        if isinstance(block, schema.ImageBlock) and role == "user":
            parts.append(block)
            continue
        if not isinstance(block, schema.ToolResultBlock) or role != "user":
            raise _wrong_role(block, role, f"{name}.content.{number}")
        if parts:
            yield {"role": role, "content": _content(parts)}
            parts = []
        yield {
            "role": "tool",
            "tool_call_id": block.tool_use_id,
            "content": _result(block),
        }
    if parts or not blocks:
        yield {"role": role, "content": _content(parts)}


def _result(block: schema.ToolResultBlock) -> str | list[dict[str, object]]:
    """What a tool returned; the text of an error says that it is one."""
    content = _content(block.content or "")
    if not block.is_error:
        return content
    if isinstance(content, str):
        return f"Error: {content}"
    return [{"type": "text", "text": "Error:"}, *content]


def _answers(blocks: Sequence[schema.Block], name: str) -> Iterator[dict[str, object]]:
    """A model writes its reasoning, its text and its calls as one message; then another begins."""
    answer = _Answer()
    for number, block in enumerate(blocks):
        match block:
            case schema.TextBlock():
                if answer.calls:
                    yield answer.message()
                    answer = _Answer()
                answer.texts.append(block)
            case schema.ToolUseBlock():
                arguments = json.dumps(block.input, ensure_ascii=False)
                function = {"name": block.name, "arguments": arguments}
                answer.calls.append({"id": block.id, "type": "function", "function": function})
            case schema.ThinkingBlock():
                answer.thoughts.append(block.thinking)
            case schema.RedactedThinkingBlock():
                pass
            case _:
                raise _wrong_role(block, "assistant", f"{name}.content.{number}")
    yield answer.message()


@dataclass(slots=True)
class _Answer:
    """The parts of an assistant's message."""

    texts: list[schema.TextBlock] = field(default_factory=list)
    calls: list[dict[str, object]] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)

    def message(self) -> dict[str, object]:
        """The message of a chat."""
        text = _text(self.texts)
        message: dict[str, object] = {"role": "assistant", "content": text}
        if self.thoughts:
            message["reasoning_content"] = "\n".join(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
            message["content"] = text or None
        return message


def _wrong_role(block: schema.Block, role: str, param: str) -> InvalidField:
    message = f"{param}: a message of the {role} has no block of the type {block.type}."
    return InvalidField(param, message)


def _text(content: str | Sequence[schema.TextBlock]) -> str:
    """A content as one text; nothing is inserted between its blocks but line feeds."""
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _content(
    content: str | Sequence[schema.TextBlock | schema.ImageBlock],
) -> str | list[dict[str, object]]:
    """A content as one text, or with pictures as the parts of a chat's message."""
    if isinstance(content, str):
        return content
    texts = [block for block in content if isinstance(block, schema.TextBlock)]
    if len(texts) == len(content):
        return _text(texts)
    return [
        {"type": "text", "text": block.text}
        if isinstance(block, schema.TextBlock)
        else {"type": "image_url", "image_url": {"url": block.source.location}}
        for block in content
    ]


def _tools(
    body: schema.MessagesRequest | schema.CountTokensRequest,
) -> tuple[FunctionTools, list[str]]:
    """What the model may call, and the fields of the tools that are left out."""
    functions: list[Function] = []
    paths: list[FunctionPath] = []
    ignored: list[str] = []
    for number, tool in enumerate(body.tools or ()):
        path = f"tools.{number}"
        if isinstance(tool, schema.ServerTool):
            ignored.append(path)
            continue
        paths.append(FunctionPath.at(path, "input_schema"))
        ignored += [f"{path}.{name}" for name in tool.model_extra or () if name not in _NO_EFFECT]
        functions.append(
            Function(
                name=tool.name,
                description=tool.description,
                parameters=tool.input_schema,
                strict=tool.strict,
            )
        )
    choice = body.tool_choice
    parallel = None if choice is None else not choice.disable_parallel_tool_use
    named = _choice(choice)
    return checked_tools(functions, paths, named, NAMES, parallel=parallel), ignored


def _choice(choice: schema.ToolChoice | None) -> ToolChoice | None:
    if choice is None:
        return None
    if choice.type != "tool":
        if choice.name is not None:
            param = "tool_choice.name"
            raise InvalidField(
                param, f"{param} needs the type tool, not {short_repr(choice.type)}."
            )
        return _CHOICES[choice.type]
    if choice.name is None:
        raise InvalidField("tool_choice.name", "tool_choice.name is required with the type tool.")
    return NamedTool(type="function", function=NamedFunction(name=choice.name))
