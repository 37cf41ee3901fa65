"""Replaces the parsers that a configuration leaves to the engine by those of the target."""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from engine_adapter.seam.config import AUTO_PARSER, EngineConfig
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.seam.message_parts import AssistantMessage, Piece, assemble
from engine_adapter.seam.parsing import OutputParser, Parsing, ParsingRequest
from engine_adapter.seam.text import truncate
from engine_adapter.seam.types import NO_PARSER, Delta, FinishReason, ParserChoice
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway.harmony import HarmonyParsing, HarmonyTokens, is_harmony
from engine_adapter.vllm_engine.gateway.parser_choice import (
    PROBE_TOOL,
    CannotRead,
    Probe,
    Template,
    choose_calls,
    choose_reasoning,
)
from engine_adapter.vllm_engine.gateway.parser_families import Family
from engine_adapter.vllm_engine.gateway.parsing import VllmParsing, composed_parser, load_tokenizer
from engine_adapter.vllm_engine.gateway.preflight import target_architectures
from engine_adapter.vllm_engine.patches.log_filters import silence_parser_lines

log = structlog.get_logger(__name__)

_NAMED = "it is set"
_NO_TEMPLATE = ParserChoice(None, "the target has no chat template")


def choose_parsers(config: EngineConfig) -> tuple[ParserChoice, ParserChoice]:
    """The parsers of calls and of reasoning, each named by the configuration or found.

    Logs those that it looked for. Blocks for a second.

    Raises:
        EngineConfigError: the tokenizer or the chat template cannot be read.
    """
    calls, reasoning = (
        NO_PARSER if name is None else ParserChoice(name, _NAMED)
        for name in (config.tool_call_parser, config.reasoning_parser)
    )
    if AUTO_PARSER not in (calls.name, reasoning.name):
        return calls, reasoning
    began_s = time.monotonic()
    silence_parser_lines()
    search = _Search(config)
    if calls.name == AUTO_PARSER:
        calls = search.calls()
    if reasoning.name == AUTO_PARSER:
        reasoning = search.reasoning()
    log.info(
        "parsers_chosen",
        tool_call_parser=calls.name or "none",
        because_of_calls=calls.reason,
        reasoning_parser=reasoning.name or "none",
        because_of_reasoning=reasoning.reason,
        took_s=round(time.monotonic() - began_s, 2),
    )
    return calls, reasoning


class _Search:
    """Tries parsers on what the target's chat template writes."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._tokenizer = load_tokenizer(config)
        self._architectures = target_architectures(config)
        text = _template_text(config)
        # A tokenizer can have several templates, by name.
        self._template = Template(
            str(text or getattr(self._tokenizer, "chat_template", None) or ""),
            partial(_render, self._tokenizer, text),
        )

    def calls(self) -> ParserChoice:
        """The parser of the target's calls."""
        if not self._template.source:
            return _NO_TEMPLATE
        return choose_calls(self._template, self._architectures, self._read)

    def reasoning(self) -> ParserChoice:
        """The parser of the target's reasoning."""
        if not self._template.source:
            return _NO_TEMPLATE
        return choose_reasoning(self._template, self._architectures, self._read)

    def _read(self, family: Family, probe: Probe) -> Sequence[AssistantMessage]:
        """See `parser_choice.Read`."""
        calls = family.tool_call_parser if probe.has_call else None
        reasoning = None if probe.has_call else family.reasoning_parser
        manager = compat.ToolParserManager if probe.has_call else compat.ReasoningParserManager
        if (calls or reasoning) not in manager.list_registered():
            raise CannotRead("this release of vLLM does not have it")
        request = ParsingRequest(
            self._token_ids(probe.prompt),
            (PROBE_TOOL,) if probe.has_call else (),
            probe.variables,
        )
        try:
            parsing = self._parsing(request, calls, reasoning)
            message = parsing.new_parser().whole(
                Delta(probe.text, self._token_ids(probe.text), finish_reason=FinishReason.STOP)
            )
            streamed = assemble(self._stream(parsing.new_parser(), probe.text))
        except Exception as error:  # it may lack tokens, a package or the model's configuration
            raise CannotRead(truncate(" ".join(str(error).split()))) from error
        # A call that is lost in a stream is found at its end; see `VllmParser`.
        return (message,) if probe.has_call else (message, streamed)

    def _parsing(
        self, request: ParsingRequest, calls: str | None, reasoning: str | None
    ) -> Parsing:
        """The parsers of a request, without constraints. Raises anything."""
        if is_harmony(calls, reasoning):
            tokens = HarmonyTokens(self._tokenizer)
            return HarmonyParsing(tokens, request, None, finds_reasoning=reasoning is not None)
        parser = composed_parser(self._config.model, self._tokenizer, calls, reasoning)
        return VllmParsing(parser, self._tokenizer, None, request, None)

    def _stream(self, parser: OutputParser, text: str) -> Iterator[Piece]:
        """The pieces of a text that comes token by token."""
        for token in self._token_ids(text):
            yield from parser.read(Delta(self._tokenizer.decode([token]), (token,)))
        yield from parser.read(Delta(finish_reason=FinishReason.STOP))

    def _token_ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


def _template_text(config: EngineConfig) -> str | None:
    if config.chat_template is None:
        return None
    try:
        return Path(config.chat_template).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise EngineConfigError("chat_template", f"{config.chat_template}: {error}") from error


def _render(tokenizer: Any, template: str | None, messages: Sequence[Any], **options: Any) -> str:
    return str(
        tokenizer.apply_chat_template(
            list(messages), chat_template=template, tokenize=False, **options
        )
    )
