"""The calls in the JSON of a required `tool_choice`, however it is cut into deltas."""

import json
import random
import time
from typing import Any

import pytest

from engine_adapter.seam.errors import EngineError
from server.openai.call_array import CallArray
from server.openai.message_parts import CallArguments, CallBegin, assemble

NASTY: list[dict[str, Any]] = [
    {},
    {"a": {"b": [[], [{"c": {}}], "]}"]}},
    {"text": 'he said "{\\"name\\": 1}" \\', "back": "\\\\", "é漢🙂": "\u2028\n\t"},
    {"name": "get", "parameters": {"name": "set", "parameters": [1.5e3, None, True]}},
]
NAMES = ("get_weather", "a-b", "x" * 64, "get_weather")


def text_of(*, indent: int | None = None) -> str:
    calls = [{"name": n, "parameters": p} for n, p in zip(NAMES, NASTY, strict=True)]
    separators = (",", ":") if indent is None else None
    return json.dumps(calls, ensure_ascii=False, indent=indent, separators=separators)


def read(array: CallArray, *parts: str) -> list[Any]:
    return [piece for part in parts for piece in array.read(part)]


@pytest.mark.parametrize("indent", [None, 2])
def test_calls_are_found_in_any_deltas(indent: int | None) -> None:
    text, rng = text_of(indent=indent), random.Random(1)
    for size in (1, 2, 3, 7, 50, len(text)):
        parts = []
        rest = text
        while rest:
            cut = rng.randint(1, size)
            parts.append(rest[:cut])
            rest = rest[cut:]
        array = CallArray()
        pieces = read(array, *parts)
        calls = assemble(pieces).calls
        assert array.is_complete
        assert [call.name for call in calls] == list(NAMES)
        assert [json.loads(call.arguments) for call in calls] == NASTY
        assert len({call.id for call in calls}) == 4
        assert all(piece.text for piece in pieces if isinstance(piece, CallArguments))


def test_arguments_are_the_text_as_it_was_generated() -> None:
    arguments = '{"a":1.0e2,"b":"\\u00e9"}'
    (call,) = assemble(read(CallArray(), f'[{{"name":"f","parameters":{arguments}}}]')).calls
    assert call.arguments == arguments


def test_a_piece_is_there_as_soon_as_its_text_is() -> None:
    array = CallArray()
    assert read(array, '[{"name":"get') == []
    (begin, first) = read(array, '","parameters":{"x"')
    assert isinstance(begin, CallBegin)
    assert (begin.index, begin.name) == (0, "get")
    assert first == CallArguments(0, '{"x"')
    assert read(array, ":") == [CallArguments(0, ":")]
    assert read(array, "1}") == [CallArguments(0, "1}")]
    assert read(array, "}") == []
    assert not array.is_complete
    assert read(array, "]") == []
    assert array.is_complete
    assert read(array, "anything") == []


@pytest.mark.parametrize("end", range(1, len(text_of()), 7))
def test_a_text_that_ends_early_is_incomplete(end: int) -> None:
    array = CallArray()
    calls = assemble(read(array, text_of()[:end])).calls
    assert not array.is_complete
    assert [call.name for call in calls] == list(NAMES[: len(calls)])


@pytest.mark.parametrize("text", ["no json" * 50, '[{"parameters":{' + "x" * 300, "[[" * 200])
def test_another_format_is_an_error(text: str) -> None:
    with pytest.raises(EngineError):
        read(CallArray(), text)


def test_the_work_for_a_delta_does_not_grow_with_the_text() -> None:
    def seconds(count: int) -> float:
        array = CallArray()
        read(array, '[{"name":"f","parameters":{"x":"')
        begin = time.thread_time()
        for _ in range(count):
            for _piece in array.read('a\\"'):
                pass
        return time.thread_time() - begin

    seconds(1000)
    short = min(seconds(2_000) for _ in range(5))
    assert min(seconds(20_000) for _ in range(3)) < 40 * short
