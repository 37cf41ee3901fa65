"""How much of a given text a message or a log line repeats."""

MAX_ECHO = 200
"""The most characters."""


def cut(text: str, limit: int = MAX_ECHO) -> str:
    """The text, cut to `limit` characters; an ellipsis ends a text that was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def clip(value: object) -> str:
    """`value` as a message repeats it: its repr, cut to `MAX_ECHO` characters."""
    return cut(repr(value))
