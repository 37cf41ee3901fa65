"""The grammars of llguidance that constraints become, and the limits of their matchers.

Used where constraints are checked, where the engine compiles them, and where drafts follow them, so
that all see the same.
"""

import json
from functools import cache
from typing import Any

from engine_adapter.seam.schema_keywords import ANY_OBJECT
from engine_adapter.seam.types import ConstraintKind

_FORMATS = {
    ConstraintKind.REGEX: "regex",
    ConstraintKind.CHOICE: "choice",
    ConstraintKind.GRAMMAR: "grammar",
}

MAX_ITEMS_IN_ROW = 2500
"""Items of a parser at one place of the text: a list of choices takes one for each."""

STEP_LEXER_FUEL = 100_000
"""Work of a lexer for one mask; 14,000 take about a millisecond."""

STEP_MAX_ITEMS = 10_000
"""Items of a parser for one mask. In an ambiguous grammar the time of each grows with their number:
20,000 were seen to take 0.6 s. Of ordinary grammars, some hundreds suffice for most.
"""

MAX_LEXER_STATES = 50_000
"""States that a lexer keeps, of 1 to 2 kB each."""

BACKEND = "guidance"
"""The backend of vLLM's that these grammars are for."""

_NAMED_SCHEMAS = (
    *("properties", "patternProperties", "$defs", "definitions"),
    *("dependentSchemas", "dependencies"),
)
_SCHEMAS = (
    *("additionalProperties", "unevaluatedProperties", "propertyNames", "contains"),
    *("additionalItems", "unevaluatedItems", "not", "if", "then", "else", "contentSchema"),
    *("items", "prefixItems", "allOf", "anyOf", "oneOf"),
)


def serialized(
    kind: ConstraintKind, value: str, *, any_whitespace: bool, named_properties: bool = False
) -> str:
    """The grammar of a constraint, as vLLM makes it; a test compares them.

    Args:
        value: as in `StructuredOutput`; for `CHOICE` the choices as JSON text.
        any_whitespace: white space between the tokens of JSON is free.
        named_properties: an object has only the properties that its schema names, unless the schema
            says otherwise. vLLM's `disable_additional_properties`.

    Raises `ValueError` for a text that is not a grammar.
    """
    import llguidance

    if kind in _FORMATS:
        return str(llguidance.grammar_from(_FORMATS[kind], value))  # type: ignore[arg-type]
    schema: Any = value if kind is ConstraintKind.JSON_SCHEMA else ANY_OBJECT
    if named_properties and kind is ConstraintKind.JSON_SCHEMA:
        schema = json.loads(schema)
        _close(schema)
    return str(
        llguidance.LLMatcher.grammar_from_json_schema(
            schema, defaults={"whitespace_flexible": any_whitespace}
        )
    )


def _close(schema: dict[str, Any]) -> None:
    """Forbids properties that a schema does not name, in it and in all schemas within it."""
    within = [schema.get(key) for key in _SCHEMAS]
    for key in _NAMED_SCHEMAS:
        named = schema.get(key)
        within.append(list(named.values()) if isinstance(named, dict) else None)
    for schemas in within:
        for subschema in schemas if isinstance(schemas, list) else [schemas]:
            if isinstance(subschema, dict):
                _close(subschema)
    values = (schema.get(key) for key in _NAMED_SCHEMAS[:2])
    if "additionalProperties" not in schema and any(isinstance(value, dict) for value in values):
        schema["additionalProperties"] = False


def choices_text(choices: tuple[str, ...]) -> str:
    """Choices as vLLM hands them to `serialized`."""
    return json.dumps(list(choices))


def new_matcher(tokenizer: Any, grammar: str) -> Any:
    """llguidance's matcher of a serialized grammar. Raises `ValueError` if it has a fault."""
    import llguidance

    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=matcher_limits())
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return matcher


@cache
def matcher_limits() -> Any:
    """llguidance's `LLParserLimits`: the work of one mask, and what a matcher keeps in memory.

    Their sum over a request is bounded by time: see `core.constrained`.
    """
    import llguidance

    return llguidance.LLParserLimits(
        max_items_in_row=MAX_ITEMS_IN_ROW,
        step_lexer_fuel=STEP_LEXER_FUEL,
        step_max_items=STEP_MAX_ITEMS,
        max_lexer_states=MAX_LEXER_STATES,
        verbose_errors=False,
    )
