"""The overlap of a chat's earlier answers, and of answers as they are generated."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from engine_adapter.seam.types import Delta, FinishReason
from server.control.routing.overlap import RunningOverlap
from server.openai.answer_overlap import MAX_TURN_CHARS, earlier_overlap, measured
from server.schema.messages import Message


class CharRenderer:
    """Each character is a token."""

    def __init__(self) -> None:
        self.encoded = 0

    async def encode(self, text: str, **_: object) -> tuple[int, ...]:
        self.encoded += len(text)
        return tuple(map(ord, text))


def chat(*texts: str) -> list[Message]:
    return [
        Message(role="assistant" if i % 2 else "user", content=text) for i, text in enumerate(texts)
    ]


@pytest.mark.parametrize(
    ("texts", "share"),
    [
        (("abcdefgh",), None),
        (("abcdefgh", "abcdefgh"), 1.0),
        (("abcdefgh", "stuvwxyz"), 0.0),
        (("abcdefgh", "abcdefgh", "more", "klmnopqr"), 0.5),
        (("abcdefgh", "abc"), None),
        (("x", "abcdefgh", "y", "abcdefgh"), 0.5),
    ],
)
async def test_it_is_measured_on_the_answers_of_the_chat(
    texts: tuple[str, ...], share: float | None
) -> None:
    assert await earlier_overlap(CharRenderer(), chat(*texts)) == share  # type: ignore[arg-type]


async def test_only_the_end_of_a_long_chat_is_tokenized() -> None:
    renderer = CharRenderer()
    texts = ["a" * MAX_TURN_CHARS] * 6
    assert await earlier_overlap(renderer, chat(*texts)) is not None  # type: ignore[arg-type]
    assert renderer.encoded == MAX_TURN_CHARS


async def deltas() -> AsyncGenerator[tuple[int, Delta], None]:
    """Choice 0 repeats its prompt, choice 1 does not, choice 2 does not end."""
    yield 0, Delta(token_ids=(1, 2, 3))
    yield 1, Delta(token_ids=(7, 8, 9, 10), finish_reason=FinishReason.STOP)
    yield 2, Delta(token_ids=(1, 2, 3, 4))
    yield 0, Delta(token_ids=(4,), finish_reason=FinishReason.LENGTH)


async def test_each_answer_that_ends_is_measured_and_all_deltas_pass() -> None:
    measures = (RunningOverlap(), RunningOverlap())
    async with aclosing(measured(deltas(), [(1, 2, 3, 4)] * 3, measures)) as passed:
        seen = [index async for index, _ in passed]
    assert seen == [0, 1, 2, 0]
    assert [(one.mean, len(one)) for one in measures] == [(0.5, 2)] * 2


async def test_closing_it_closes_the_deltas() -> None:
    inner = deltas()
    outer = measured(inner, [()] * 3, (RunningOverlap(),))
    await anext(outer)
    await outer.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(inner)
