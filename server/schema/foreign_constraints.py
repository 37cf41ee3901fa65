"""Constraints on the text under the names that other servers and older clients use.

They mean what the fields of `structured_outputs` mean, so they are honoured: llama.cpp's `grammar`
and `json_schema`, Ollama's `format`, and the `guided_*` of older releases of vLLM.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from engine_adapter.seam.types import ConstraintKind, StructuredOutput
from server.schema.base import check_unicode
from server.schema.bounds import MAX_GRAMMAR_CHARS
from server.schema.structured import Choice, Grammar, Regex, schema_constraint


class ForeignConstraints(BaseModel):
    """The fields. An empty text, where the other server sends it for "none", is none."""

    grammar: (
        Annotated[str, Field(max_length=MAX_GRAMMAR_CHARS), AfterValidator(check_unicode)] | None
    ) = None
    json_schema: dict[str, Any] | str | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: Regex | None = None
    guided_choice: Choice | None = None
    guided_grammar: Grammar | None = None

    def foreign_constraints(self) -> list[StructuredOutput]:
        """The constraints that are given, in the order of the fields. Raises `InvalidField`."""
        found = [
            _of_text(ConstraintKind.GRAMMAR, self.grammar, "grammar"),
            _of_schema(self.json_schema, "json_schema"),
            self._of_format(),
            _of_schema(self.guided_json, "guided_json"),
            _of_text(ConstraintKind.REGEX, self.guided_regex, "guided_regex"),
            _of_text(ConstraintKind.GRAMMAR, self.guided_grammar, "guided_grammar"),
        ]
        if self.guided_choice is not None:
            choices = tuple(self.guided_choice)
            found.append(
                StructuredOutput(ConstraintKind.CHOICE, choices=choices, param="guided_choice")
            )
        return [constraint for constraint in found if constraint is not None]

    def _of_format(self) -> StructuredOutput | None:
        """Ollama's `json` is any object."""
        if self.format == "json":
            return StructuredOutput(ConstraintKind.JSON_OBJECT, param="format")
        return _of_schema(self.format or None, "format")


def _of_schema(schema: dict[str, Any] | str | None, param: str) -> StructuredOutput | None:
    return None if schema is None else schema_constraint(schema, param)


def _of_text(kind: ConstraintKind, text: str | None, param: str) -> StructuredOutput | None:
    return StructuredOutput(kind, text, param=param) if text and text.strip() else None
