"""`ngram`: prompt lookup. Drafts the tokens that followed the row's last n-gram earlier in the row.

Source: prompt lookup decoding, github.com/apoorvumang/prompt-lookup-decoding. Among several
matches the longest n-gram wins, then the earliest, as in vLLM, so acceptance rates are comparable.
Rows are searched together: a call of numpy costs more than a short row.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import (
    Capabilities,
    DraftHost,
    OptionError,
    ProposerMethod,
    ProposerSpec,
)
from engine_adapter.seam.text import short_repr

COMPARED = 2
"""Tokens of the n-gram that are looked for in every place. The rest is looked for where these are:
of random text with 30 tokens, one place in 900."""

MAX_PADDING = 2
"""How much larger than its rows a matrix of them may be; otherwise rows of similar length are
searched together, so that one long row does not make the others' part of it long."""


def continuations(
    tokens: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64], min_n: int, max_n: int
) -> npt.NDArray[np.int64]:
    """The position after the earliest occurrence of the longest n-gram that each row ends with.

    Args:
        tokens: int32 [R, T], the rows so far; any tokens after a row's end.
        lengths: int64 [R], at least 1.
        min_n, max_n: the n-gram has min_n to max_n tokens.

    Returns:
        int64 [R], in [1, lengths[i]); 0 for a row without a match.
    """
    start = np.zeros(len(lengths), np.int64)
    compared = min(min_n, COMPARED)
    places = tokens.shape[1] - compared + 1
    if places <= 0:
        return start
    # Of a row that is shorter, any tokens: it has no place before its last n-gram.
    newest = tokens[np.arange(len(lengths))[:, None], lengths[:, None] - np.arange(compared, 0, -1)]
    equal = tokens[:, :places] == newest[:, :1]
    for i in range(1, compared):
        equal &= tokens[:, i : i + places] == newest[:, i : i + 1]
    # Where an earlier occurrence of a row's last n tokens ends, row after row; fewer as n grows.
    row, end = np.divmod(np.flatnonzero(equal), places)
    end += compared - 1
    is_earlier = end < lengths[row] - 1
    row, end = row[is_earlier], end[is_earlier]
    for n in range(compared, max_n + 1):
        if n > compared:
            row, end = row[end >= n - 1], end[end >= n - 1]
            equal = tokens[row, end - n + 1] == tokens[row, lengths[row] - n]
            row, end = row[equal], end[equal]
        if not row.size:
            break
        if n >= min_n:
            first_ends = np.flatnonzero(np.diff(row, prepend=-1))
            start[row[first_ends]] = end[first_ends] + 1
    return start


class NgramProposer:
    """Searches every row for its own last n-gram. Has no state, so it never lags."""

    weights_bytes = 0

    def __init__(self, min_n: int, max_n: int) -> None:
        self._min_n = min_n
        self._max_n = max_n

    def propose(self, batch: DraftBatch) -> Drafts:
        """The tokens at each row's `continuations`, at most k."""
        lengths = batch.prefix_lengths
        if len(lengths) * lengths.max() <= MAX_PADDING * lengths.sum():
            start = self._search(batch.token_ids, batch.rows, lengths)
        else:
            start, size = np.zeros(len(lengths), np.int64), np.frexp(lengths)[1]
            for size_class in set(size.tolist()):
                index = np.flatnonzero(size == size_class)
                start[index] = self._search(batch.token_ids, batch.rows[index], lengths[index])
        count = np.where(start > 0, np.minimum(batch.k, lengths - start), 0)
        columns = np.minimum(start[:, None] + np.arange(count.max()), lengths[:, None] - 1)
        drafted = batch.token_ids[batch.rows[:, None], columns].tolist()
        return Drafts([row[:n] for row, n in zip(drafted, count.tolist(), strict=True)])

    def _search(
        self,
        token_ids: npt.NDArray[np.int32],
        rows: npt.NDArray[np.intp],
        lengths: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """The `continuations` of some rows. Rows that follow each other are not copied."""
        follow = (np.diff(rows) == 1).all()
        row_index = slice(rows[0], rows[0] + len(rows)) if follow else rows
        tokens = token_ids[row_index, : lengths.max()]
        return continuations(tokens, lengths, self._min_n, self._max_n)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Nothing to drop: it has no state."""


def check_lengths(spec: ProposerSpec, minimum: str, maximum: str) -> None:
    """Raises `OptionError` unless the two options are n-gram lengths, 1 <= minimum <= maximum."""
    low, high = spec.options[minimum], spec.options[maximum]
    for option, value in ((minimum, low), (maximum, high)):
        if type(value) is not int or value < 1:
            raise OptionError(option, f"must be an integer of at least 1, got {short_repr(value)}")
    if low > high:
        raise OptionError(minimum, f"({low}) must not exceed {maximum} ({high})")


def _validate(spec: ProposerSpec) -> None:
    check_lengths(spec, "prompt_lookup_min", "prompt_lookup_max")


def _create(spec: ProposerSpec, host: DraftHost) -> NgramProposer:
    return NgramProposer(spec.options["prompt_lookup_min"], spec.options["prompt_lookup_max"])


METHOD = ProposerMethod(
    name="ngram",
    capabilities=Capabilities(continues=True),
    default_k=5,
    options={"prompt_lookup_min": 2, "prompt_lookup_max": 5},
    validate=_validate,
    create=_create,
)
"""The entry in `METHODS`."""
