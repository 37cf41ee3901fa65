"""Text of requests: what UTF-8 can carry, and what a message says of it."""

import difflib
from collections.abc import Iterable

MAX_MESSAGE = 2000
"""The most characters of an error message."""

TOO_LONG = "string_above_max_length"
"""OpenAI's code of a text with too many characters."""

MAX_COMPARED = 64
"""The most characters of a word that is compared with known ones: no name is longer."""


SIMILARITY = 0.7
"""How similar a known word must be to be the one that was meant, from 0 to 1."""


def is_unicode(text: str) -> bool:
    """Whether the text can be encoded: JSON can carry a lone surrogate, UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def replace_surrogates(text: str) -> str:
    """The text with a question mark instead of each lone surrogate."""
    return text.encode("utf-8", "replace").decode()


def did_you_mean(word: str, known_words: Iterable[str], prefix: str = "") -> str:
    """The end of a message about an unknown word: the known word most like it; empty without one.

    A long word is not compared, because the time grows with the product of both lengths.

    Args:
        prefix: what stands before the known word in the message.
    """
    if len(word) > MAX_COMPARED:
        return ""
    close = difflib.get_close_matches(word, known_words, n=1, cutoff=SIMILARITY)
    return f"; did you mean {prefix}{close[0]}?" if close else ""
