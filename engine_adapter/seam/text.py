"""Texts from outside: valid names, and how much of one a message or a log line repeats."""

import re

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""A name that an operator gives to a proposer, an API key or a routing rule, for `fullmatch`.

In Python `$` also matches before a newline at the end.
"""

MAX_ECHO = 200
"""The most characters."""


def truncate(text: str, limit: int = MAX_ECHO) -> str:
    """At most `limit` characters of the text; an ellipsis ends a text that is longer."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def short_repr(value: object) -> str:
    """At most `MAX_ECHO` characters of the repr of `value`, for a message."""
    return truncate(repr(value))
