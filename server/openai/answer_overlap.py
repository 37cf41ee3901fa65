"""The overlap of answers with the text before them, measured for routing rules."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from engine_adapter.seam.types import Delta
from server.control.routing.overlap import MAX_TOKENS, RunningOverlap, overlap
from server.rendering import Renderer
from server.schema.messages import Message

MAX_TURN_CHARS = 4 * MAX_TOKENS
"""The most text of a chat that is tokenized to measure its earlier answers; the last is taken."""


async def earlier_overlap(renderer: Renderer, messages: Sequence[Message]) -> float | None:
    """The overlap of a chat's earlier answers, weighted by their length; `None` without one.

    Each message is tokenized by itself, because the rendered chat does not show where one begins.
    """
    turns: list[tuple[bool, str]] = []
    room = MAX_TURN_CHARS
    for message in reversed(messages):
        text = message.text[-room:]
        turns.append((message.role == "assistant", text))
        room -= len(text)
        if room <= 0:
            break
    earlier_tokens: list[int] = []
    covered = total = 0.0
    for is_answer, text in reversed(turns):
        tokens = await renderer.encode(text, add_special_tokens=False, param="messages")
        share = overlap(earlier_tokens, tokens) if is_answer else None
        if share is not None:
            covered += share * len(tokens)
            total += len(tokens)
        earlier_tokens.extend(tokens)
    return covered / total if total else None


async def measured(
    deltas: AsyncGenerator[tuple[int, Delta], None],
    prompts: Sequence[Sequence[int]],
    measures: Sequence[RunningOverlap],
) -> AsyncGenerator[tuple[int, Delta], None]:
    """Passes deltas on, and measures the overlap of each choice that ends.

    Args:
        prompts: the prompt of each choice.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    async with aclosing(deltas):
        async for index, delta in deltas:
            answer = answers[index]
            if len(answer) < MAX_TOKENS:
                answer.extend(delta.token_ids)
            if delta.finish_reason is not None:
                share = overlap(prompts[index], answer)
                if share is not None:
                    for measure in measures:
                        measure.add(share)
            yield index, delta
