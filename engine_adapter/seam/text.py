"""Texts from outside: valid names, and how much of a text a message or a log line repeats."""

import re

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""A name that an operator gives to a proposer, an API key or a routing rule, for `fullmatch`.

In Python `$` also matches before a newline at the end.
"""

MAX_ECHO = 200
"""The most characters."""


def cut(text: str, limit: int = MAX_ECHO) -> str:
    """The text, cut to `limit` characters; an ellipsis ends a text that was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def clip(value: object) -> str:
    """`value` as a message repeats it: its repr, cut to `MAX_ECHO` characters."""
    return cut(repr(value))
