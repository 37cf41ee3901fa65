"""Special tokens of a template, told apart from the same texts in what a client sends.

A chat template writes special tokens, such as `<|im_end|>`, around a client's texts, and all of it
becomes one text. A client's text must not end its turn. So a stand-in, a character that occurs
nowhere else, takes the place of the first character of each special token in it, until the
template has rendered. The special tokens that are whole then are the template's.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from server.errors import InvalidField

STAND_INS = range(0x100000, 0x10FFFE)
"""The code points of stand-ins: the last plane of private use."""

_ESCAPES = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
"""JSON escapes of the characters that need two, stand-ins among them."""

MAX_WORD = 32
"""The most characters of a text that may be a name."""

_PUNCTUATION = re.compile(r"[^\w\s.:-]")


class HiddenValue(NamedTuple):
    """A JSON value whose special tokens are hidden by stand-ins.

    `has_tokens`: the tokenizer would find a special token in a text of the value.
    `originals`: stand-in -> the character in whose place it is.
    """

    value: Any
    has_tokens: bool
    originals: Mapping[str, str]

    def restore(self, text: str) -> str:
        """A rendered text without stand-ins, those that a template wrote as JSON escapes too."""
        for stand_in, original in self.originals.items():
            text = text.replace(stand_in, original).replace(json.dumps(stand_in)[1:-1], original)
        return text


class SpecialTokens:
    """The texts of a tokenizer's special tokens.

    Args:
        texts: how the special tokens are written.
        normalize: the tokenizer's normalizer, if it finds special tokens in normalized text.
    """

    def __init__(
        self, texts: Collection[str], normalize: Callable[[str], str] | None = None
    ) -> None:
        self.texts = frozenset(filter(None, texts))
        self._longest = max(map(len, self.texts), default=0)
        self._joined_texts = "\0".join(self.texts)
        self._starts = {text[:end] for text in self.texts for end in range(2, len(text))}
        self._ends = {text[begin:] for text in self.texts for begin in range(1, len(text) - 1)}
        self._first_characters = _one_of(text[0] for text in self.texts)
        self._last_characters = _one_of(text[-1] for text in self.texts)
        self._places_in_word = lru_cache(maxsize=1024)(self._places)
        self._pattern = _pattern(self.texts)
        self._normalize = normalize
        if normalize is not None:
            self._normalized_pattern = _pattern(self.texts.union(map(normalize, self.texts)))

    def occur_in(self, text: str) -> bool:
        """Whether the tokenizer could find a special token in a text."""
        if self._pattern.search(text):
            return True
        return self._normalize is not None and bool(
            self._normalized_pattern.search(self._normalize(text))
        )

    def occur_in_value(self, value: Any) -> bool:
        """Whether the tokenizer could find a special token in a text or name of a JSON value."""
        return any(map(self.occur_in, _texts(value)))

    def count(self, text: str) -> int:
        """How many special tokens are written in a text."""
        return sum(1 for _ in self._pattern.finditer(text))

    def replace(self, text: str, replacements: Mapping[str, str]) -> str:
        """A text with other texts in the places of its special tokens."""
        return self._pattern.sub(lambda token: replacements[token[0]], text)

    def hide(self, value: Any) -> HiddenValue:
        """Hides the special tokens in the texts and names of a JSON value.

        The value is returned itself if there is nothing to hide. Raises `InvalidField` if its
        texts leave no character for a stand-in.
        """
        texts = set(_texts(value))
        places = {text: in_text for text in texts if (in_text := self._places_in(text))}
        has_tokens = any(map(self.occur_in, texts if self._normalize else places))
        if not places:
            return HiddenValue(value, has_tokens, {})
        originals = {text[place] for text, in_text in places.items() for place in in_text}
        stand_ins = dict(zip(sorted(originals), _unused("".join(texts)), strict=False))
        if len(stand_ins) < len(originals):
            message = "messages contain special tokens and all characters of private use."
            raise InvalidField("messages", message)
        new_texts = {
            text: _with_stand_ins(text, in_text, stand_ins) for text, in_text in places.items()
        }
        by_stand_in = {stand_in: original for original, stand_in in stand_ins.items()}
        return HiddenValue(_replace_texts(value, new_texts), has_tokens, by_stand_in)

    def _places_in(self, text: str) -> Sequence[int]:
        """`_places`. The names of fields and roles are in every chat: they are looked at once."""
        return self._places_in_word(text) if len(text) <= MAX_WORD else self._places(text)

    def _places(self, text: str) -> Sequence[int]:
        """Where a text needs a stand-in, so that no special token has a part of it.

        A template can put two texts together, or a text between characters of its own: a part of
        a token at the beginning or the end of a text counts too.
        """
        places = set()
        match = self._pattern.search(text)
        while match:  # tokens can overlap
            places.add(match.start())
            match = self._pattern.search(text, match.start() + 1)
        for match in self._first_characters.finditer(text, max(0, len(text) - self._longest)):
            if text[match.start() :] in self._starts:
                places.add(match.start())
        for match in self._last_characters.finditer(text, 0, self._longest):
            if text[: match.end()] in self._ends:
                places.add(0)
        # A word alone, such as a name of a schema's property, stays: templates compare it.
        if (
            1 < len(text) < self._longest
            and _PUNCTUATION.search(text)
            and text in self._joined_texts
        ):
            places.add(0)
        return sorted(places)


def _unused(text: str) -> Iterator[str]:
    """Stand-ins that a text has neither as characters nor as JSON escapes."""
    escapes = "".join(_ESCAPES.findall(text))
    characters = {*text, *json.loads(f'"{escapes}"')}
    return (stand_in for stand_in in map(chr, STAND_INS) if stand_in not in characters)


def _with_stand_ins(text: str, places: Sequence[int], stand_ins: Mapping[str, str]) -> str:
    characters = list(text)
    for place in places:
        characters[place] = stand_ins[characters[place]]
    return "".join(characters)


def _texts(value: Any) -> Iterator[str]:
    """Every text of a JSON value, names of fields included."""
    nodes = [value]
    while nodes:
        node = nodes.pop()
        if isinstance(node, str):
            yield node
        elif isinstance(node, Mapping):
            yield from node
            nodes.extend(node.values())
        elif isinstance(node, list | tuple):
            nodes.extend(node)


def _replace_texts(value: Any, texts: Mapping[str, str]) -> Any:
    """A JSON value with other texts. No level is deeper than the body's parser allows."""
    if isinstance(value, str):
        return texts.get(value, value)
    if isinstance(value, Mapping):
        return {
            texts.get(name, name): _replace_texts(child, texts) for name, child in value.items()
        }
    if isinstance(value, list | tuple):
        return [_replace_texts(child, texts) for child in value]
    return value


def _one_of(characters: Iterable[str]) -> re.Pattern[str]:
    return _pattern(set(characters))


def _pattern(texts: Collection[str]) -> re.Pattern[str]:
    """Matches the longest of the texts; nothing if there are none.

    A tree of their beginnings: some tokenizers have thousands of special tokens, and one branch
    for each would be tried at every `<`.
    """
    tree: dict[str, Any] = {}
    for text in filter(None, texts):
        node = tree
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    return re.compile(_branches(tree) if tree else r"(?!)")


def _branches(node: dict[str, Any]) -> str:
    longer = [
        re.escape(character) + _branches(subtree)
        for character, subtree in node.items()
        if character
    ]
    if not longer:
        return ""
    return f"(?:{'|'.join(longer)}){'?' if '' in node else ''}"
