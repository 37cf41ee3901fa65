"""Batches as an engine builds them, from lists of tokens."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from engine_adapter.proposers.batch import Constraint, DraftBatch

WIDTH = 512
"""Columns of the batch's token array: longer than any row of these tests."""

JUNK = 7
"""The fill value after a row's last token: a proposer that reads it gives wrong drafts."""


def random_lookups(
    rng: np.random.Generator,
) -> Iterator[tuple[dict[str, list[int]], int, int, int]]:
    """Cases of prompt lookup: rows that repeat themselves, the shortest n, the longest, and k."""
    for _ in range(150):
        rows = {
            f"r{i}": rng.integers(0, rng.integers(1, 6), rng.integers(1, 90)).tolist()
            for i in range(rng.integers(1, 60))
        }
        min_n = int(rng.integers(1, 5))
        yield rows, min_n, min_n + int(rng.integers(0, 4)), int(rng.integers(1, 9))


def batch(
    rows: Mapping[str, Sequence[int]],
    k: int | Sequence[int] = 4,
    prompt: int | Sequence[int] = 1,
    computed: Sequence[int] | None = None,
    scattered: bool = False,
    hidden_of: Callable[[DraftBatch], Any] | None = None,
    predicted: Sequence[Sequence[int] | None] | None = None,
    constraints: Sequence[Constraint | None] | None = None,
    junk: int = JUNK,
) -> DraftBatch:
    """A batch with one row per request.

    Args:
        rows: request id -> its committed tokens.
        k: k of all rows, or of each row.
        prompt: number of prompt tokens of all rows, or of each row.
        computed: number of tokens of each row that the target had read before the step; all but
            the newest by default.
        scattered: whether other rows lie between these in the engine's batch.
        hidden_of: computes the target's hidden states, for a method that drafts from them.
        predicted: the predicted output of each row's request.
        constraints: the structured output of each row's request.
        junk: the fill value after a row's last token.
    """
    count, lengths = len(rows), [len(tokens) for tokens in rows.values()]
    index = np.arange(count) * (2 if scattered else 1) + (1 if scattered else 0)
    table = np.full((int(index.max()) + 2, WIDTH), junk, np.int32)
    for i, tokens in zip(index, rows.values(), strict=True):
        table[i, : len(tokens)] = tokens
    table.flags.writeable = False  # as in the engine
    num_computed = [length - 1 for length in lengths] if computed is None else list(computed)
    made = DraftBatch(
        rows=index,
        request_ids=list(rows),
        num_tokens=np.array(lengths, np.int64),
        num_prompt_tokens=np.broadcast_to(np.array(prompt, np.int64), count),
        num_computed=np.array(num_computed, np.int64),
        k=np.broadcast_to(np.array(k, np.int64), count),
        token_ids=table,
        predicted=None
        if predicted is None
        else [None if tokens is None else np.array(tokens, np.int32) for tokens in predicted],
        constraints=constraints,
    )
    return made if hidden_of is None else replace(made, hidden=hidden_of(made))
