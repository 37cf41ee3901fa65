"""`ngram`: prompt lookup. Drafts the tokens that followed the row's last n-gram earlier in the row.

Source: prompt lookup decoding, github.com/apoorvumang/prompt-lookup-decoding. Among several
matches the longest n-gram wins, then the earliest, as in vLLM, so acceptance rates are comparable.
Rows of similar length are searched together: a call of numpy costs more than a short row.
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
from engine_adapter.text import clip


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
    last = tokens[np.arange(len(lengths)), lengths - 1]
    # Where an earlier occurrence of a row's last n tokens ends, row after row; fewer as n grows.
    row, end = np.divmod(np.flatnonzero(tokens == last[:, None]), tokens.shape[1])
    earlier = end < lengths[row] - 1
    row, end = row[earlier], end[earlier]
    start = np.zeros(len(lengths), np.int64)
    for n in range(1, max_n + 1):
        if n > 1:
            row, end = row[end >= n - 1], end[end >= n - 1]
            same = tokens[row, end - n + 1] == tokens[row, lengths[row] - n]
            row, end = row[same], end[same]
        if not row.size:
            break
        if n >= min_n:
            first = np.flatnonzero(np.diff(row, prepend=-1))
            start[row[first]] = end[first] + 1
    return start


class NgramProposer:
    """Searches every row for its own last n-gram. Has no state, so it never lags."""

    weights_bytes = 0

    def __init__(self, min_n: int, max_n: int) -> None:
        self._min_n = min_n
        self._max_n = max_n

    def propose(self, batch: DraftBatch) -> Drafts:
        """The tokens at each row's `continuations`, at most k."""
        lengths, start = batch.num_tokens, np.zeros(len(batch.rows), np.int64)
        # By powers of 2, so that one long row does not make the others' part of [R, T] long.
        size = np.frexp(lengths)[1]
        for one in set(size.tolist()):
            index = np.flatnonzero(size == one)
            tokens = batch.token_ids[batch.rows[index], : lengths[index].max()]
            start[index] = continuations(tokens, lengths[index], self._min_n, self._max_n)
        count = np.where(start > 0, np.minimum(batch.k, lengths - start), 0)
        columns = np.minimum(start[:, None] + np.arange(count.max()), lengths[:, None] - 1)
        drafted = batch.token_ids[batch.rows[:, None], columns].tolist()
        return Drafts([row[:n] for row, n in zip(drafted, count.tolist(), strict=True)])

    def forget(self, request_ids: Sequence[str]) -> None:
        """Nothing to drop: it has no state."""


def check_lengths(spec: ProposerSpec, minimum: str, maximum: str) -> None:
    """Raises `OptionError` unless the two options are n-gram lengths, 1 <= minimum <= maximum."""
    low, high = spec.options[minimum], spec.options[maximum]
    for option, value in ((minimum, low), (maximum, high)):
        if type(value) is not int or value < 1:
            raise OptionError(option, f"must be an integer of at least 1, got {clip(value)}")
    if low > high:
        raise OptionError(minimum, f"({low}) must not exceed {maximum} ({high})")


def _validate(spec: ProposerSpec) -> None:
    check_lengths(spec, "prompt_lookup_min", "prompt_lookup_max")


def _create(spec: ProposerSpec, host: DraftHost) -> NgramProposer:
    return NgramProposer(spec.options["prompt_lookup_min"], spec.options["prompt_lookup_max"])


METHOD = ProposerMethod(
    name="ngram",
    capabilities=Capabilities(),
    default_k=5,
    options={"prompt_lookup_min": 2, "prompt_lookup_max": 5},
    validate=_validate,
    create=_create,
)
"""The entry in `METHODS`."""
