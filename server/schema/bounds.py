"""How large the parts of a body may be that constrain the text, or that are lists.

Each bound is checked before work that grows with the part. What one of them would cost in time all
the same, such as a grammar that is small and slow, is bounded where it is compiled.
"""

from collections.abc import Iterator
from typing import Any

from server.errors import InvalidField

MAX_STOPS = 128
"""Stop strings: each is searched for in every new piece of text."""

MAX_STOP_CHARS = 1024
"""Characters of a stop string: as many are held back from a stream."""

MAX_STOP_TOKENS = 1024
"""Entries of `stop_token_ids`."""

MAX_BIASES = 1024
"""Entries of `logit_bias`."""

MAX_ALLOWED_TOKENS = 16_384
"""Entries of `allowed_token_ids`."""

MAX_BAD_WORDS = 128
"""Entries of `bad_words`: vLLM's limit, after tokenization."""

MAX_BAD_WORD_CHARS = 128
"""Characters of an entry of `bad_words`: each is tokenized for each choice."""

MAX_PATTERN = 64
"""Tokens of a pattern that `repetition_detection` looks for: vLLM tries each length per token."""

MAX_REPEATED_TOKENS = 1024
"""Tokens of all repetitions of the longest pattern of `repetition_detection`: after each token of
the text the scheduler may compare as many for each length, and all rows wait for it.
"""

MAX_PARTS = 10_000
"""Parts of an item or a prediction; parts and earlier calls of all messages of a chat together."""

MAX_TEXTS = 2000
"""Entries of a `choice`: each is a branch of the grammar."""

MAX_TEXTS_CHARS = 200_000
"""Characters of all entries of a `choice`."""

MAX_REGEX_CHARS = 20_000
"""Characters of a regular expression."""

MAX_GRAMMAR_CHARS = 100_000
"""Characters of a grammar."""

MAX_DESCRIPTION = 16_384
"""Characters of the description of a response format, which the model does not see."""

MAX_SCHEMA_CHARS = 500_000
"""Characters of a JSON schema, and of the schemas of all tools together."""

MAX_SCHEMA_TEXT_CHARS = 20_000
"""Characters of a name in a JSON schema, and of a text of its `const`, `enum`, `pattern` or
`required`. Each takes some 600 bytes of the engine's memory. The longer a text is that must follow,
the more CPU time each of its tokens takes.
"""

MAX_SCHEMA_TEXTS_CHARS = 200_000
"""Characters of all these texts together: as many as a `choice` may have."""

_TEXT_KEYWORDS = ("const", "enum", "pattern", "required")
"""Keywords whose texts are part of the answer, or match it."""

_NAME_KEYWORDS = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose keys are names, so that a property can be called `const`."""

MAX_SCHEMA_VALUES = 50_000
"""Values of a JSON schema: objects, lists, texts, numbers."""

MAX_NESTING = 64
"""Levels of objects and lists in a JSON schema: vLLM's limit."""

MAX_TOOL_NESTING = 50
"""Levels of objects and lists in a tool's schema; the schema of a call adds some."""

MAX_INPUT_ITEMS = 4096
"""Items of a response's input; each becomes a message or a part of one."""


def too_many(what: str, maximum: int, count: int | None = None) -> str:
    """The predicate of a message about a field that has too many of something.

    Args:
        count: how many it has; `None` if only so many were counted that the bound is passed.
    """
    if count is None:
        return f"has more than {maximum:,} {what}, which is the maximum"
    return f"has {count:,} {what}; the maximum is {maximum:,}"


def check_schema(schema: Any, param: str, levels: int = MAX_NESTING) -> None:
    """Raises `InvalidField` for a JSON schema that is too large or too deep.

    It stops where a bound of the size is passed, so a larger schema does not take it longer.
    """
    chars = values = depth = 0
    level = [schema]
    while level:
        depth += 1
        inner: list[Any] = []
        for node in level:
            children = list(node.values()) if isinstance(node, dict) else node
            names = node if isinstance(node, dict) else ()
            texts = [child for child in children if isinstance(child, str)]
            values += len(children)
            chars += sum(map(len, names)) + sum(map(len, texts))
            if values > MAX_SCHEMA_VALUES:
                raise InvalidField(param, f"{param} {too_many('values', MAX_SCHEMA_VALUES)}.")
            if chars > MAX_SCHEMA_CHARS:
                raise InvalidField(param, f"{param} {too_many('characters', MAX_SCHEMA_CHARS)}.")
            inner.extend(child for child in children if isinstance(child, dict | list))
        level = inner
    if depth > levels:
        reason = too_many("levels of objects and lists", levels, depth)
        raise InvalidField(param, f"{param} {reason}.")
    _check_texts(schema, param)


def _check_texts(schema: Any, param: str) -> None:
    """Raises `InvalidField` for a schema whose texts are too long, alone or together."""
    chars = 0
    for keyword, text in _texts(schema):
        if len(text) > MAX_SCHEMA_TEXT_CHARS:
            what = f"characters in a text of {keyword}" if keyword else "characters in a name"
            reason = too_many(what, MAX_SCHEMA_TEXT_CHARS, len(text))
            raise InvalidField(param, f"{param} {reason}.")
        chars += len(text) if keyword else 0
    if chars > MAX_SCHEMA_TEXTS_CHARS:
        what = f"characters in all texts of {', '.join(_TEXT_KEYWORDS)}"
        reason = too_many(what, MAX_SCHEMA_TEXTS_CHARS, chars)
        raise InvalidField(param, f"{param} {reason}.")


def _texts(schema: Any) -> Iterator[tuple[str | None, str]]:
    """Each text that a schema may put into an answer, with its keyword; `None` is a name's."""
    # Whose text a node is, and whether its keys are names of properties or definitions.
    nodes: list[tuple[str | None, bool, Any]] = [(None, False, schema)]
    while nodes:
        keyword, has_names, node = nodes.pop()
        if isinstance(node, dict):
            for name, child in node.items():
                yield None, name
                key = None if keyword or has_names else name
                owner = key if key in _TEXT_KEYWORDS else keyword
                nodes.append((owner, key in _NAME_KEYWORDS, child))
        elif isinstance(node, list):
            nodes.extend((keyword, False, child) for child in node)
        elif isinstance(node, str) and keyword is not None:
            yield keyword, node
