"""The constraints on texts that have a form of the target's own, such as calls of tools."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.parsing import CallConstraint, NoCallGrammar
from engine_adapter.seam.schema_keywords import ANY_OBJECT
from engine_adapter.seam.types import ConstraintKind, StructuredOutput
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway.arguments import structured_outputs_config
from engine_adapter.vllm_engine.gateway.call_grammar import call_begins, call_grammar
from engine_adapter.vllm_engine.gateway.call_tags import own_tag
from engine_adapter.vllm_engine.gateway.harmony_tag import harmony_tag


class CallConstraints:
    """Makes the constraints for one tokenizer and one parser. Its own making blocks for a second.

    Args:
        tokenizer: as vLLM has loaded it.
    """

    def __init__(self, config: EngineConfig, tokenizer: Any) -> None:
        self._parser_name = config.tool_call_parser
        self._config = structured_outputs_config(config)
        self._specials: Mapping[str, int] = {}
        self._lacks = ""
        if self._config["backend"] != "guidance":
            self._lacks = f"the backend {self._config['backend']!r} has no grammar for calls"
            return
        try:
            self._specials = _special_tokens(tokenizer)
        except ValueError as error:
            self._lacks = f"llguidance does not take this model's tokenizer: {error}"

    def make(
        self,
        parser: Any,
        body: Any,
        schemas: Mapping[str, str],
        answer: StructuredOutput | None,
        *,
        single_call: bool,
    ) -> CallConstraint:
        """The constraint; see `Parsing.call_constraint`.

        Args:
            parser: vLLM's parser of the request's calls.
            body: the request as that parser reads it.
        """
        if self._lacks:
            raise NoCallGrammar(self._lacks)
        choice = "auto" if answer is None else "required"
        strict_body = body.model_copy(update={"tools": _strict(schemas), "tool_choice": choice})
        tag = self._structural_tag(parser, strict_body, schemas, single_call=single_call)
        schema = None
        if answer is not None:
            is_any = answer.kind is ConstraintKind.JSON_OBJECT
            schema = json.loads(ANY_OBJECT if is_any else answer.value)
        try:
            begins = () if answer is None else call_begins(tag)
            text = call_grammar(
                tag, schema, specials=self._specials, json_schema=self._inline_schema
            )
        except NoCallGrammar as error:
            raise self._refusal(str(error)) from error
        param = "tools" if answer is None else answer.param
        unenforced = () if answer is None else answer.unenforced
        constraint = StructuredOutput(
            ConstraintKind.GRAMMAR, text, param=param, unenforced=unenforced
        )
        return CallConstraint(constraint, begins)

    def harmony(
        self, schemas: Mapping[str, str], answer: StructuredOutput | None
    ) -> StructuredOutput:
        """The constraint on a text of gpt-oss, its reasoning included.

        Args:
            schemas: tool -> the JSON schema of its arguments, as JSON text.
            answer: `None` leaves the answer free.

        Raises:
            NoCallGrammar: there is none.
        """
        if self._lacks:
            raise NoCallGrammar(self._lacks)
        text = call_grammar(
            harmony_tag(schemas, answer),
            None,
            specials=self._specials,
            json_schema=self._inline_schema,
        )
        if answer is None:
            return StructuredOutput(ConstraintKind.GRAMMAR, text, param="tools")
        return replace(answer, kind=ConstraintKind.GRAMMAR, value=text, choices=())

    def _structural_tag(
        self, parser: Any, body: Any, schemas: Mapping[str, str], *, single_call: bool
    ) -> dict[str, Any]:
        """vLLM's description of the calls, or ours, as JSON."""
        try:
            tag = parser.get_structural_tag(body)
        except (ValueError, compat.VLLMClientError) as error:  # a tag that this release lacks
            raise self._refusal(str(error)) from error
        if tag is None:
            return self._own_tag(schemas, single_call=single_call)
        if single_call:
            tag = compat.limit_to_single_tool_call(tag)
        dumped: dict[str, Any] = tag.format.model_dump()
        return dumped

    def _own_tag(self, schemas: Mapping[str, str], *, single_call: bool) -> dict[str, Any]:
        values = {name: json.loads(schema) for name, schema in schemas.items()}
        try:
            tag = own_tag(self._parser_name or "", values, self._specials, single_call=single_call)
        except NoCallGrammar as error:
            raise self._refusal(str(error)) from error
        if tag is None:
            raise self._refusal("its calls have no description")
        return tag

    def _inline_schema(self, schema: Any) -> Any:
        """A schema within a grammar, with what the server's configuration says of all schemas."""
        serialized = compat.serialize_guidance_grammar(
            compat.StructuredOutputOptions.JSON,
            ANY_OBJECT if schema is True else json.dumps(schema),
            bool(self._config.get("disable_any_whitespace")),
            bool(self._config.get("disable_additional_properties")),
        )
        return json.loads(serialized)["grammars"][0]["json_schema"]

    def _refusal(self, reason: str) -> NoCallGrammar:
        return NoCallGrammar(f"the tool call parser {self._parser_name!r}: {reason}")


def _strict(schemas: Mapping[str, str]) -> Sequence[Any]:
    """vLLM's tools with these schemas. Every one is strict: it has its schema."""
    body = compat.ChatCompletionRequest(
        messages=[{"role": "user", "content": ""}],
        tools=[
            {
                "type": "function",
                "function": {"name": name, "parameters": json.loads(schema), "strict": True},
            }
            for name, schema in schemas.items()
        ],
    )
    tools: Sequence[Any] = body.tools
    return tools


def _special_tokens(tokenizer: Any) -> dict[str, int]:
    """The added tokens that llguidance does not match as text. Blocks for about a second.

    Raises `ValueError` for a tokenizer that llguidance does not take.
    """
    from llguidance.hf import from_tokenizer

    matcher_tokenizer = from_tokenizer(tokenizer)
    added = tokenizer.get_added_vocab()
    return {
        text: token for text, token in added.items() if matcher_tokenizer.is_special_token(token)
    }
