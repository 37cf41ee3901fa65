"""The search of prompt lookup, compiled: it looks at every token of every row in each step."""

from typing import Any

from engine_adapter.proposers.machine_code import machine_code

Array = Any
"""An array as numba sees it: its indices and elements are compiled, not checked."""


@machine_code
def find_continuations(
    token_ids: Array,
    rows: Array,
    lengths: Array,
    k: Array,
    min_n: int,
    max_n: int,
    drafted: Array,
    counts: Array,
) -> None:
    """Writes what followed the longest n-gram that each row ends with, where it came first.

    Args:
        token_ids: int32 [B, T], of which row `rows[i]` is valid in [0, lengths[i]).
        rows: int [R].
        lengths: int64 [R], at least 1.
        k: int64 [R], the most tokens of each row.
        min_n, max_n: the n-gram has min_n to max_n tokens.
        drafted: int64 [R, the largest k], is written.
        counts: int64 [R], is written: the tokens of each row, 0 without a match.
    """
    for i in range(len(rows)):
        row, length = token_ids[rows[i]], lengths[i]
        longest, start = 0, length
        for end in range(length - 1):
            n = 0
            while n < max_n and n <= end and row[end - n] == row[length - 1 - n]:
                n += 1
            if n >= min_n and n > longest:
                longest, start = n, end + 1
                if n == max_n:
                    break
        counts[i] = min(k[i], length - start)
        for j in range(counts[i]):
            drafted[i, j] = row[start + j]
