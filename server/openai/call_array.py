"""Reads the calls of a required `tool_choice` out of their JSON while it is generated.

The text is `[{"name":"f","parameters":{...}},...]`, held to it by a grammar. Libraries for partial
JSON parse the text so far again for each delta, and give values instead of the text of a value.
This reads every character once.
"""

import re
import uuid
from collections.abc import Iterator

from engine_adapter.seam.errors import EngineError
from engine_adapter.seam.message_parts import CallArguments, CallBegin, Piece

_BEFORE_ARGUMENTS = re.compile(r'(?:\[|\},)\{"name":"([\w-]+)","parameters":\{')
_END = "}]"
_MAX_BETWEEN = 256
"""The most characters between the arguments of two calls, without white space.

A name has at most 130: two of 64, one of them a namespace's.
"""

_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')


def new_call_id() -> str:
    """An id in OpenAI's format."""
    return f"call_{uuid.uuid4().hex[:24]}"


class CallArray:
    """The calls of one choice, from the text of its deltas.

    Attributes:
        is_complete: the array has ended, so every call is whole.
    """

    def __init__(self) -> None:
        self.is_complete = False
        self._index = -1
        self._between = ""
        self._in_arguments = False
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def read(self, text: str) -> Iterator[Piece]:
        """The pieces in the next text. Raises `EngineError` for text of another format."""
        while text and not self.is_complete:
            if self._in_arguments:
                end = self._end_of_arguments(text)
                yield CallArguments(self._index, text[:end])
            else:
                name, end = self._begin_of_arguments(text)
                if name is not None:
                    self._index += 1
                    yield CallBegin(self._index, new_call_id(), name)
            text = text[end:]

    def _begin_of_arguments(self, text: str) -> tuple[str | None, int]:
        """The name of the call that begins, if one does, and where its arguments begin."""
        for position, character in enumerate(text):
            if character.isspace():  # names have none, so it belongs to no value here
                continue
            self._between += character
            if self._between == _END:
                self.is_complete = True
                break
            if character == "{" and (match := _BEFORE_ARGUMENTS.fullmatch(self._between)):
                self._between = ""
                self._in_arguments = True
                return match[1], position
            if len(self._between) > _MAX_BETWEEN:
                raise EngineError("the text of the tool calls does not have their format")
        return None, len(text)

    def _end_of_arguments(self, text: str) -> int:
        """How many of the characters belong to the arguments; follows nesting and strings."""
        position = 0
        while position < len(text):
            if self._is_escaped:
                self._is_escaped = False
                position += 1
                continue
            match = (_IN_STRING if self._in_string else _STRUCTURE).search(text, position)
            if match is None:
                return len(text)
            position = match.end()
            if match[0] == "\\":
                self._is_escaped = True
            elif match[0] == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if match[0] in "{[" else -1
                if not self._depth:
                    self._in_arguments = False
                    break
        return position
