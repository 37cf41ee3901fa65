"""vLLM's own parsers of reasoning and of the calls that a target makes by itself."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine_adapter.config import EngineConfig
from engine_adapter.errors import EngineConfigError
from engine_adapter.message_parts import (
    AssistantMessage,
    CallArguments,
    CallBegin,
    Piece,
    ReasoningPiece,
    TextPiece,
    ToolCall,
)
from engine_adapter.parsing import CallConstraint, ParsingRequest
from engine_adapter.types import Delta, StructuredOutput
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway.arguments import tokenizer_source
from engine_adapter.vllm_engine.gateway.call_constraint import CallConstraints


class VllmParsers:
    """The parsers that the configuration names.

    Loading them checks their names, and that the tokenizer has the tokens which they look for.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._tokenizer: Any = None
        self._with_calls: Any = None
        self._without_calls: Any = None
        self._constraints: CallConstraints | None = None

    @property
    def are_configured(self) -> bool:
        """Whether there is a parser."""
        return bool(self._config.tool_call_parser or self._config.reasoning_parser)

    def load(self) -> None:
        """Imports the parsers and reads the tokenizer. Blocks for seconds.

        Raises:
            EngineConfigError: the parser does not exist, or it does not fit the tokenizer.
        """
        config = self._config
        _check_name("tool_call_parser", config.tool_call_parser, compat.ToolParserManager)
        _check_name("reasoning_parser", config.reasoning_parser, compat.ReasoningParserManager)
        self._tokenizer = _tokenizer(config)
        self._without_calls = self._composed(None)
        self._with_calls = self._without_calls
        if config.tool_call_parser:
            self._with_calls = self._composed(config.tool_call_parser)
            self._constraints = CallConstraints(config, self._tokenizer)

    def _composed(self, tool_call_parser: str | None) -> Any:
        """vLLM's class of both parsers; `None` if there is neither."""
        setting = "tool_call_parser" if tool_call_parser else "reasoning_parser"
        try:
            return compat.ParserManager.get_parser(
                tool_parser_name=tool_call_parser,
                reasoning_parser_name=self._config.reasoning_parser,
                enable_auto_tools=tool_call_parser is not None,
                model_name=self._config.model,
                tokenizer=self._tokenizer,
            )
        except TypeError as error:  # vLLM names its flags, and the reason
            raise EngineConfigError(setting, str(error)) from error

    def parsing(self, request: ParsingRequest, model_config: Any) -> "VllmParsing | None":
        """The parsers of a request; `None` if there is nothing to tell apart."""
        parser = self._with_calls if request.tools else self._without_calls
        if parser is None:
            return None
        return VllmParsing(parser, self._tokenizer, model_config, request, self._constraints)


def _check_name(setting: str, name: str | None, manager: Any) -> None:
    names = manager.list_registered()
    if name is not None and name not in names:
        message = f"vLLM has no parser {name!r}; it has {', '.join(names)}"
        raise EngineConfigError(setting, message)


def _tokenizer(config: EngineConfig) -> Any:
    arguments = config.arguments
    tokenizer, revision = tokenizer_source(config)
    try:
        return compat.get_tokenizer(
            tokenizer,
            trust_remote_code=bool(arguments.get("trust_remote_code")),
            revision=revision,
            download_dir=arguments.get("download_dir"),
        )
    except (OSError, ValueError) as error:
        raise EngineConfigError("tokenizer", str(error)) from error


class VllmParsing:
    """The parsers of one request. See `Parsing`."""

    def __init__(
        self,
        parser: Any,
        tokenizer: Any,
        model_config: Any,
        request: ParsingRequest,
        constraints: CallConstraints | None,
    ) -> None:
        self._parser = parser
        self._tokenizer = tokenizer
        self._model_config = model_config
        self._request = request
        self._constraints = constraints
        first = self._new_parser_of(_body(request))
        self._body = first.adjust_request(_body(request))
        self._tool_parser = first.tool_parser
        self._marks_are_special = _marks_are_special(first.reasoning_parser, tokenizer)

    @property
    def needs_special_tokens(self) -> bool:
        """See `Parsing.needs_special_tokens`."""
        # A parser sets it to false; unset, it is `None` in vLLM 0.33 and true before.
        return self._marks_are_special or self._body.skip_special_tokens is False

    def new_parser(self) -> "VllmParser":
        """See `Parsing.new_parser`."""
        parser = self._new_parser_of(self._body)
        return VllmParser(parser, self._body, self._request.prompt_token_ids)

    def call_constraint(
        self, schemas: Mapping[str, str], answer: StructuredOutput | None, *, single: bool
    ) -> CallConstraint:
        """See `Parsing.call_constraint`."""
        assert self._constraints is not None, "the request has tools"
        return self._constraints.make(self._tool_parser, self._body, schemas, answer, single=single)

    def _new_parser_of(self, body: Any) -> Any:
        return self._parser(
            self._tokenizer,
            body.tools,
            chat_template_kwargs=dict(self._request.template_variables),
            model_config=self._model_config,
        )


def _marks_are_special(reasoning_parser: Any, tokenizer: Any) -> bool:
    """Whether the marks of reasoning would be left out of the text with the special tokens."""
    if reasoning_parser is None:
        return False
    marks = (reasoning_parser.reasoning_start_str, reasoning_parser.reasoning_end_str)
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    special = {token.content for token in added if token.special}
    return any(mark is not None and mark.strip() in special for mark in marks)


def _body(request: ParsingRequest) -> Any:
    """The request as vLLM's parsers read it.

    It has no `strict`, for which vLLM would add a constraint in a format of its own. Of the chat
    only the number of calls matters.
    """
    tools = [_without_strict(tool) for tool in request.tools]
    call = {"id": "", "type": "function", "function": {"name": "", "arguments": "{}"}}
    earlier = {"role": "assistant", "tool_calls": [call] * request.num_earlier_calls}
    return compat.ChatCompletionRequest(
        messages=[earlier if request.num_earlier_calls else {"role": "user", "content": ""}],
        tools=tools or None,
        tool_choice="auto" if tools else "none",
    )


def _without_strict(tool: Any) -> dict[str, Any]:
    function = {name: value for name, value in tool["function"].items() if name != "strict"}
    return {**tool, "function": function}


@dataclass(slots=True)
class _Call:
    """A call that is being streamed; arguments wait until its name is known."""

    has_begun: bool = False
    waiting: str = ""


class VllmParser:
    """One choice. See `OutputParser`."""

    def __init__(self, parser: Any, body: Any, prompt_token_ids: tuple[int, ...]) -> None:
        self._parser = parser
        self._body = body
        self._prompt = list(prompt_token_ids)
        self._token_ids: list[int] = []
        self._calls: dict[int, _Call] = {}

    def read(self, delta: Delta) -> Sequence[Piece]:
        """See `OutputParser.read`."""
        self._token_ids.extend(delta.token_ids)
        message = self._parser.parse_delta(
            delta_text=delta.text,
            delta_token_ids=list(delta.token_ids),
            request=self._body,
            prompt_token_ids=self._prompt,
            finished=delta.finish_reason is not None,
        )
        return [] if message is None else list(self._pieces(message))

    def whole(self, everything: Delta) -> AssistantMessage:
        """See `OutputParser.whole`."""
        self._token_ids = list(everything.token_ids)
        self._parser.set_prompt_token_ids(self._prompt)
        reasoning, text, calls = self._parser.parse(
            everything.text,
            self._body,
            enable_auto_tools=True,
            model_output_token_ids=everything.token_ids,
        )
        if reasoning and not (text or calls) and self._parser.is_reasoning_end(self._prompt):
            # The prompt has ended the reasoning; vLLM looks at it only for streams.
            reasoning, text, calls = None, *self._without_reasoning(everything.text)
        return AssistantMessage(
            text or "",
            reasoning or "",
            tuple(
                ToolCall(call.id or compat.make_tool_call_id(), call.name, call.arguments)
                for call in calls or ()
            ),
        )

    def _without_reasoning(self, text: str) -> tuple[str | None, list[Any]]:
        """Answer and calls of a text."""
        if self._parser.tool_parser is None:
            return text, []
        found = self._parser.tool_parser.extract_tool_calls(text, request=self._body)
        return found.content, [call.function for call in found.tool_calls]

    @property
    def num_reasoning_tokens(self) -> int | None:
        """See `OutputParser.num_reasoning_tokens`."""
        if self._parser.reasoning_parser is None:
            return None
        return int(self._parser.count_reasoning_tokens(tuple(self._token_ids)))

    def _pieces(self, message: Any) -> Iterator[Piece]:
        """The pieces of vLLM's `DeltaMessage`."""
        if message.reasoning:
            yield ReasoningPiece(message.reasoning)
        if message.content:
            yield TextPiece(message.content)
        for fragment in message.tool_calls or ():
            yield from self._fragment(fragment)

    def _fragment(self, fragment: Any) -> Iterator[Piece]:
        call = self._calls.setdefault(fragment.index, _Call())
        function = fragment.function
        name = function.name if function is not None else None
        call.waiting += (function.arguments if function is not None else None) or ""
        if name and not call.has_begun:
            call.has_begun = True
            yield CallBegin(fragment.index, fragment.id or compat.make_tool_call_id(), name)
        if call.has_begun and call.waiting:
            yield CallArguments(fragment.index, call.waiting)
            call.waiting = ""
