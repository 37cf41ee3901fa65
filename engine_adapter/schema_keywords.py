"""What llguidance, the grammar engine of vLLM's `guidance` backend, cannot enforce of a JSON schema.

llguidance refuses a schema for a single keyword that it does not implement. Ordinary classes have
such keywords: a set has `uniqueItems`, a path has a `format` of its own. `relax` takes them out, so
that the rest of the schema can be enforced. A schema becomes only weaker by it. Read in llguidance
1.7; a test compares the lists with the installed release.
"""

import re
from collections.abc import Iterator
from typing import Any

UNENFORCED = frozenset(
    {
        "contains",
        "contentSchema",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "maxContains",
        "minContains",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    }
)
"""Keywords of JSON Schema that are not enforced."""

FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)
"""Values of `format` that are enforced."""

_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose value maps names to schemas."""

_OF_SCHEMAS = (
    *("additionalProperties", "items", "prefixItems", "additionalItems"),
    *("allOf", "anyOf", "oneOf"),
)
"""Keywords whose value is a schema or a list of schemas."""

_LOOKS_AROUND = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k<|\\[bB]")
"""Look-ahead, look-behind, back-references and word boundaries: not regular, or without width."""


def relax(schema: dict[str, Any]) -> tuple[str, ...]:
    """Removes from a schema, in place, what is not enforced.

    Returns:
        The names of what was removed, each once: the keyword, and for a format also its value
        (`format:password`).
    """
    removed: dict[str, None] = {}
    nodes: list[Any] = [schema]
    while nodes:
        node = nodes.pop()
        if isinstance(node, list):
            nodes.extend(reversed(node))
        if isinstance(node, dict):
            for keyword, name in list(_unenforced(node)):
                removed[name] = None
                del node[keyword]
            nodes.extend(reversed(list(_subschemas(node))))
    return tuple(removed)


def _unenforced(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(Keyword, its name for people) of what a schema itself has, its subschemas left aside."""
    for keyword, value in node.items():
        if keyword in UNENFORCED:
            yield keyword, keyword
        elif keyword == "format" and isinstance(value, str) and value not in FORMATS:
            yield keyword, f"format:{value}"
        elif keyword == "pattern" and isinstance(value, str) and _looks_around(value):
            yield keyword, keyword


def _subschemas(node: dict[str, Any]) -> Iterator[Any]:
    for keyword in _OF_NAMES:
        if isinstance(named := node.get(keyword), dict):
            yield from named.values()
    for keyword in _OF_SCHEMAS:
        if keyword in node:
            yield node[keyword]


def _looks_around(pattern: str) -> bool:
    """Whether a pattern has what `_LOOKS_AROUND` finds, outside of a character class."""
    without_classes = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", _without_class, pattern)
    return _LOOKS_AROUND.search(without_classes) is not None


def _without_class(match: re.Match[str]) -> str:
    """An escape stays if it can matter; another one, and a character class, become a letter."""
    text = match.group()
    return text if re.fullmatch(r"\\[1-9kbB]", text) else "x"
