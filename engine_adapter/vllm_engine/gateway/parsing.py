"""vLLM's own parsers of reasoning and of the calls that a target makes by itself."""

from collections.abc import Mapping
from typing import Any

from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.seam.parsing import CallConstraint, Parsing, ParsingRequest
from engine_adapter.seam.types import StructuredOutput
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway.arguments import tokenizer_source
from engine_adapter.vllm_engine.gateway.call_constraint import CallConstraints
from engine_adapter.vllm_engine.gateway.harmony import HarmonyParsing, HarmonyTokens, is_harmony
from engine_adapter.vllm_engine.gateway.output_parser import VllmParser
from engine_adapter.vllm_engine.gateway.parser_calls import Allowance, ParserCalls
from engine_adapter.vllm_engine.patches.log_filters import silence_parser_lines, taken_parser_errors


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
        self._harmony: HarmonyTokens | None = None

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
        silence_parser_lines()
        self._tokenizer = load_tokenizer(config)
        if is_harmony(config.tool_call_parser, config.reasoning_parser):
            self._harmony = HarmonyTokens(self._tokenizer)
            self._constraints = CallConstraints(config, self._tokenizer)
            return
        self._without_calls = self._composed(None)
        self._with_calls = self._without_calls
        if config.tool_call_parser:
            self._with_calls = self._composed(config.tool_call_parser)
            self._constraints = CallConstraints(config, self._tokenizer)

    def _composed(self, tool_call_parser: str | None) -> Any:
        setting = "tool_call_parser" if tool_call_parser else "reasoning_parser"
        model, reasoning = self._config.model, self._config.reasoning_parser
        try:
            return composed_parser(model, self._tokenizer, tool_call_parser, reasoning)
        except TypeError as error:  # vLLM names its flags, and the reason
            raise EngineConfigError(setting, str(error)) from error

    def parsing(self, request: ParsingRequest, model_config: Any) -> Parsing | None:
        """The parsers of a request; `None` if there is nothing to tell apart."""
        if self._harmony is not None and self._constraints is not None:
            finds_reasoning = self._config.reasoning_parser is not None
            return HarmonyParsing(self._harmony, request, self._constraints, finds_reasoning)
        parser = self._with_calls if request.tools else self._without_calls
        if parser is None:
            return None
        return VllmParsing(parser, self._tokenizer, model_config, request, self._constraints)


def composed_parser(
    model: str, tokenizer: Any, tool_call_parser: str | None, reasoning_parser: str | None
) -> Any:
    """vLLM's class of both parsers; `None` if there is neither.

    Raises `TypeError` if one of them does not fit the tokenizer.
    """
    return compat.ParserManager.get_parser(
        tool_parser_name=tool_call_parser,
        reasoning_parser_name=reasoning_parser,
        enable_auto_tools=tool_call_parser is not None,
        model_name=model,
        tokenizer=tokenizer,
    )


def _check_name(setting: str, name: str | None, manager: Any) -> None:
    names = manager.list_registered()
    if name is not None and name not in names:
        message = f"vLLM has no parser {name!r}; it has {', '.join(names)}"
        raise EngineConfigError(setting, message)


def load_tokenizer(config: EngineConfig) -> Any:
    """The target's tokenizer, as vLLM loads it. Raises `EngineConfigError`."""
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
        self._allowance = Allowance()
        with taken_parser_errors():  # the lines can hold what clients send
            first_parser = self._new_parser_of(_body(request))
            self._body = first_parser.adjust_request(_body(request))
        self._tool_parser = first_parser.tool_parser
        self._marks_are_special = _marks_are_special(first_parser.reasoning_parser, tokenizer)

    @property
    def needs_special_tokens(self) -> bool:
        """See `Parsing.needs_special_tokens`."""
        # A parser sets it to false; unset, it is `None` in vLLM 0.33 and true before.
        return self._marks_are_special or self._body.skip_special_tokens is False

    def new_parser(self) -> "VllmParser":
        """See `Parsing.new_parser`."""
        calls = ParserCalls(self._allowance)
        prompt = self._request.prompt_token_ids
        with taken_parser_errors():
            return VllmParser(lambda: self._new_parser_of(self._body), self._body, prompt, calls)

    def text_constraint(self, answer: StructuredOutput) -> StructuredOutput:
        """See `Parsing.text_constraint`. The engine applies it after the reasoning."""
        return answer

    def call_constraint(
        self, schemas: Mapping[str, str], answer: StructuredOutput | None, *, single_call: bool
    ) -> CallConstraint:
        """See `Parsing.call_constraint`."""
        assert self._constraints is not None, "the request has tools"
        return self._constraints.make(
            self._tool_parser, self._body, schemas, answer, single_call=single_call
        )

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
    earlier_message = {"role": "assistant", "tool_calls": [call] * request.num_earlier_calls}
    return compat.ChatCompletionRequest(
        messages=[
            earlier_message if request.num_earlier_calls else {"role": "user", "content": ""}
        ],
        tools=tools or None,
        tool_choice="auto" if tools else "none",
    )


def _without_strict(tool: Any) -> dict[str, Any]:
    function = {name: value for name, value in tool["function"].items() if name != "strict"}
    return {**tool, "function": function}
