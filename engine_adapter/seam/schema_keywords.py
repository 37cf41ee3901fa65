"""What the grammar engine of vLLM's `guidance` backend, llguidance, cannot enforce of a schema.

llguidance refuses a schema for a single keyword that it does not implement. Ordinary classes have
such keywords: a set has `uniqueItems`, a path has a `format` of its own. `relax` takes them out, so
that the rest of the schema can be enforced. A schema becomes only weaker by it. Read in llguidance
1.7; a test compares the lists with the installed release.
"""

import re
from collections.abc import Iterator
from typing import Any

ANY_OBJECT = '{"type": "object"}'
"""The JSON schema of any object."""

UNENFORCED = frozenset(
    {
        "$dynamicRef",
        "contains",
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

_ASK_NOTHING_IF_FALSE = frozenset({"not", "uniqueItems"})
"""Those of them that ask for nothing when they are `false`. As a schema, `false` allows nothing."""

FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)
"""Values of `format` that are enforced."""

MAX_ITEMS = 2000
"""The most that all `minItems` and `maxItems` of a schema may add up to.

llguidance writes a rule for each item: a schema of 140 bytes with a `maxItems` of 100,000,000 took
all memory of the process that checked it.
"""

_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose value maps names to schemas."""

_OF_SCHEMAS = (
    *("additionalProperties", "items", "prefixItems", "additionalItems"),
    *("allOf", "anyOf", "oneOf"),
)
"""Keywords whose value is a schema or a list of schemas."""

_REGULAR = re.compile(
    r"(?:[^\\\[(]|\\[^1-9kbBZ]|\\\Z|\((?!\?<?[=!])"
    r"|\[\^?\]?(?:[^\]\\]|\\[^1-9kbBZ])*+(?:\]|\Z))*+",
    re.DOTALL,
)
"""The beginning of a pattern up to what has no width or is not regular.

That is a look-ahead or look-behind and, escaped, a back-reference, a word boundary or the end of
the text. It never goes back, so that it takes time in proportion to the pattern.
"""


def relax(schema: dict[str, Any]) -> tuple[str, ...]:
    """Removes from a schema, in place, what is not enforced.

    Returns:
        The names of what was removed, each once: the keyword, and for a format also its value
        (`format:password`). A keyword whose value asks for nothing is removed without a name.
    """
    removed: dict[str, None] = {}
    items = 0.0
    nodes: list[Any] = [schema]
    while nodes:
        node = nodes.pop()
        if isinstance(node, list):
            nodes.extend(reversed(node))
        if isinstance(node, dict):
            for keyword, name in list(_unenforced(node)):
                if node.pop(keyword) is not False or keyword not in _ASK_NOTHING_IF_FALSE:
                    removed[name] = None
            for keyword, count in list(_counts(node)):
                if items + count > MAX_ITEMS:
                    del node[keyword]
                    removed[keyword] = None
                else:
                    items += count
            nodes.extend(reversed(list(_subschemas(node))))
    return tuple(removed)


def num_items(schema: dict[str, Any]) -> float:
    """What all `minItems` and `maxItems` add up to, in every place that a `$ref` may lead to."""
    items = 0.0
    nodes: list[Any] = [schema]
    while nodes:
        node = nodes.pop()
        if isinstance(node, list):
            nodes.extend(node)
        if isinstance(node, dict):
            items += sum(count for _, count in _counts(node))
            nodes.extend(node.values())
    return items


def _counts(node: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The `minItems` and `maxItems` that a schema itself has. llguidance refuses other types."""
    for keyword in ("minItems", "maxItems"):
        count = node.get(keyword)
        if isinstance(count, int | float):
            yield keyword, min(count, 2 * MAX_ITEMS)


def _unenforced(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(Keyword, its name for people) of what a schema itself has, its subschemas left aside."""
    for keyword, value in node.items():
        if keyword in UNENFORCED:
            yield keyword, keyword
        elif not isinstance(value, str) or not _allows_text(node):
            continue
        elif keyword == "format" and value not in FORMATS:
            yield keyword, f"format:{value}"
        elif keyword == "pattern" and _looks_around(value):
            yield keyword, keyword


def _subschemas(node: dict[str, Any]) -> Iterator[Any]:
    for keyword in _OF_NAMES:
        if isinstance(named := node.get(keyword), dict):
            yield from named.values()
    for keyword in _OF_SCHEMAS:
        if keyword in node:
            yield node[keyword]


def _allows_text(node: dict[str, Any]) -> bool:
    """Whether a schema allows a string, the only type that formats and patterns restrict."""
    kind = node.get("type", "string")
    return kind == "string" or (isinstance(kind, list) and "string" in kind)


def _looks_around(pattern: str) -> bool:
    """Whether a pattern needs more than a regular expression can say, as llguidance reads it."""
    regular = _REGULAR.match(pattern)
    return regular is None or regular.end() < len(pattern)
