"""The body of a response -> the input of the chat that generates it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from server.errors import InvalidField
from server.openai.chat_input import (
    ChatInput,
    ChatPrompt,
    constraint_with_tools,
    template_variables,
)
from server.openai.field_names import FieldNames
from server.openai.function_tools import FunctionTools, checked_tools
from server.openai.responses.callable_tools import CallableTools, callable_tools
from server.openai.responses.conversation import Turn
from server.schema.chat import ReasoningEffort
from server.schema.json_values import surrogate_path
from server.schema.messages import checked_messages
from server.schema.responses import (
    AllowedTools,
    AnyResponse,
    ChosenFunction,
    CountInputRequest,
    ResponsePrompt,
)
from server.schema.tools import NamedFunction, NamedTool, ToolChoice
from server.text import is_unicode

NAMES = FieldNames(
    messages="input",
    chosen_function="tool_choice.name",
    format=AnyResponse.format_field,
    effort="reasoning.effort",
    logprobs="include",
    media={"image_url": "content.{part}.image_url"},
)
"""How a response names the fields of its chat."""

_REPEATED = {
    "input",
    "instructions",
    "metadata",
    "text",
    "tools",
    "tool_choice",
    "reasoning",
    "user",
    "safety_identifier",
    "prompt_cache_key",
}


def response_input(body: AnyResponse, callables: CallableTools) -> ChatInput:
    """The input of a response, without its messages. Raises `InvalidField`."""
    tools = _tools(body, callables)
    return ChatInput(
        prompt=_empty_prompt(body, tools),
        tools=tools,
        constraint=constraint_with_tools(body.structured_output(), tools, NAMES),
        max_tokens=body.max_output_tokens,
        max_tokens_name="max_output_tokens",
        num_top_logprobs=_num_top_logprobs(body),
        effort=_effort(body),
        shows_reasoning=body.include_reasoning is not False,
        ignored=(
            *_ignored_wishes(body),
            *_free_grammars(callables, tools),
            *callables.ignored,
        ),
    )


def counted_prompt(
    body: CountInputRequest, conversation: Sequence[Turn]
) -> tuple[ChatPrompt, tuple[str, ...]]:
    """The prompt whose tokens are counted, and the ignored fields. Raises `ApiError`.

    All of it is counted: `truncation` leaves nothing out.
    """
    tools = callable_tools(body)
    prompt = _empty_prompt(body, _tools(body, tools))
    ignored = [*_ignored_wishes(body), *tools.ignored]
    if body.truncation == "auto":
        ignored.append("truncation")
    return with_messages(prompt, body.instructions, conversation), tuple(ignored)


def with_messages(
    prompt: ChatPrompt, instructions: str | None, conversation: Sequence[Turn]
) -> ChatPrompt:
    """The prompt with the messages of a conversation. Raises `ApiError` for an invalid one."""
    messages = [turn.message for turn in conversation]
    names = [turn.param for turn in conversation]
    if instructions is not None:
        messages.insert(0, {"role": "system", "content": instructions})
        names.insert(0, "instructions")
    checked = checked_messages(messages, names, NAMES.messages)
    return replace(prompt, messages=checked, message_names=names)


def check_text(body: AnyResponse) -> None:
    """Raises `InvalidField` for what the response or the store could not repeat."""
    repeated = body.model_dump(include=_REPEATED)
    try:
        text = json.dumps(repeated, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise InvalidField("tools", "tools: a number is not finite.") from None
    if not is_unicode(text):
        path = surrogate_path(repeated)
        raise InvalidField(path, f"{path} contains a lone surrogate.")


def _empty_prompt(body: ResponsePrompt, tools: FunctionTools) -> ChatPrompt:
    return ChatPrompt(
        (),
        (),
        NAMES,
        variables=template_variables(body.chat_template_kwargs, _effort(body), NAMES),
        tools=tools.for_template(),
        processor_arguments=body.mm_processor_kwargs,
    )


def _effort(body: ResponsePrompt) -> ReasoningEffort | None:
    return None if body.reasoning is None else body.reasoning.effort


def _free_grammars(callables: CallableTools, tools: FunctionTools) -> Iterator[str]:
    """The Lark grammars of tools that the model may call, or need not call: they hold no call."""
    visible = {function.name for function in tools.functions}
    for name, tool in callables.by_name.items():
        is_held = isinstance(tools.choice, NamedTool) and tools.choice.function.name == name
        if tool.lark is not None and name in visible and tools.choice != "none" and not is_held:
            yield tool.path.strict


def _ignored_wishes(body: ResponsePrompt) -> Iterator[str]:
    """The fields that ask for a style which the model is not told of."""
    if body.text is not None and body.text.verbosity not in (None, "medium"):
        yield "text.verbosity"
    if body.reasoning is not None and body.reasoning.summary not in (None, "auto"):
        yield "reasoning.summary"


def _num_top_logprobs(body: AnyResponse) -> int | None:
    if body.top_logprobs and not body.has_logprobs:
        message = "top_logprobs requires include to have message.output_text.logprobs."
        raise InvalidField("top_logprobs", message)
    return (body.top_logprobs or 0) if body.has_logprobs else None


def _tools(body: ResponsePrompt, tools: CallableTools) -> FunctionTools:
    """What the model may call. Of `allowed_tools`, it sees only those allowed."""
    choice, param = body.tool_choice, NAMES.chosen_function
    chat_choice: ToolChoice | None
    if isinstance(choice, ChosenFunction) and tools.by_name:
        named = NamedFunction(name=tools.find(choice, param))
        chat_choice = NamedTool(type="function", function=named)
    elif isinstance(choice, ChosenFunction):
        chat_choice = "required"
    else:
        chat_choice = None if isinstance(choice, AllowedTools) else choice
    checked = checked_tools(
        tools.functions, tools.paths, chat_choice, NAMES, parallel=body.parallel_tool_calls
    )
    if isinstance(checked.choice, NamedTool):
        name = checked.choice.function.name
        lark = tools.by_name[name].lark
        return checked if lark is None else checked.with_arguments(name, lark)
    if not isinstance(choice, AllowedTools):
        return checked
    names = {
        tools.find(function, f"tool_choice.tools.{number}.name")
        for number, function in enumerate(choice.tools)
    }
    return checked.only(names, choice.mode)
