"""`python -m benchmarks.lookup_cost`: CPU time of `ngram` in a step, by rows and their length.

No engine: rows of random tokens, and the call that the engine makes for all of them.
"""

import statistics
import time
from collections.abc import Iterator

import numpy as np

from engine_adapter.proposers.batch import DraftBatch
from engine_adapter.proposers.ngram import NgramProposer

CASES = ((1, 600, 30), (8, 600, 30), (256, 600, 30), (256, 4000, 1000))
"""Rows, their mean length, and how many different tokens they have."""

K, STEPS, WARM_UP = 5, 50, 10

TABLE_HEAD = (
    "| rows | tokens of a row | rows with a draft | ms of CPU time |",
    "|---|---|---|---|",
)


def made_up_batch(rows: int, length: int, tokens: int) -> DraftBatch:
    """A batch of random rows with half to one and a half times `length` tokens."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(length // 2, length * 3 // 2, rows)
    return DraftBatch(
        rows=np.arange(rows),
        request_ids=[str(row) for row in range(rows)],
        num_tokens=lengths,
        num_prompt_tokens=lengths,
        num_computed=lengths - 1,
        k=np.full(rows, K),
        token_ids=rng.integers(0, tokens, (rows, 2 * length)).astype(np.int32),
    )


def table_rows() -> Iterator[str]:
    """A row for each case: the median over the steps."""
    proposer = NgramProposer(2, 5)
    for rows, length, tokens in CASES:
        batch = made_up_batch(rows, length, tokens)
        spent = []
        for _ in range(WARM_UP + STEPS):
            began = time.thread_time()
            drafts = proposer.propose(batch)
            spent.append(1e3 * (time.thread_time() - began))
        drafted = sum(map(bool, drafts.tokens))
        median = statistics.median(spent[WARM_UP:])
        yield f"| {rows} | {length} | {drafted} | {median:.3f} |"


if __name__ == "__main__":
    print(*TABLE_HEAD, *table_rows(), sep="\n")
