"""`python -m benchmarks.step.draft_kv`: CPU time of the bookkeeping of a head's KV in a step.

It runs without a model: the ledgers are asked and told what a head with early drafts asks and tells
them in a step in which each row emits a token.
"""

import statistics
import sys
import time
from types import SimpleNamespace

import numpy as np

from engine_adapter.vllm_engine.worker.drafting.kv_groups import DraftKVGroups
from engine_adapter.vllm_engine.worker.drafting.kv_ledger import HeadKVLedger

CASES = ((8, 600), (8, 8_000), (32, 8_000), (32, 32_000))
"""Rows and their tokens."""

BLOCK, STEPS, VOCABULARY = 16, 60, 1000


def step_ms(rows: int, length: int) -> float:
    """The median time of a step, in milliseconds."""
    width = (length + STEPS) // BLOCK + 1
    groups = DraftKVGroups({0: BLOCK}, rows * width, rows, HeadKVLedger)
    (ledger,), index = groups.ledgers.values(), np.arange(rows)
    blocks = np.arange(rows * width, dtype=np.int32).reshape(rows, width)
    tables = [SimpleNamespace(block_size=BLOCK, get_numpy_array=lambda: blocks)]
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCABULARY, (rows, length + STEPS + 1)).astype(np.int32)
    spent = []
    for num_tokens in np.arange(length, length + STEPS):
        old_lengths, new_lengths = np.full(rows, num_tokens), np.full(rows, num_tokens + 1)
        began = time.perf_counter()
        early = groups.blocks(tables, index, old_lengths)
        groups.first_missing(early, old_lengths)
        ledger.must_wait(ledger.block_ends(early[0], old_lengths, tokens, index), rows)
        late = groups.blocks(tables, index, new_lengths)
        ledger.record(ledger.block_ends(late[0], new_lengths, tokens, index))
        groups.mark_valid(late, new_lengths)
        spent.append(1e3 * (time.perf_counter() - began))
    return statistics.median(spent)


def main() -> int:
    """Prints the table. Returns the exit status."""
    print("| rows | tokens of a row | ms |", "|---|---|---|", sep="\n")
    for rows, length in CASES:
        print(f"| {rows} | {length:,} | {step_ms(rows, length):.3f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
