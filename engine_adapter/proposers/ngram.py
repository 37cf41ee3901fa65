"""`ngram`: prompt lookup. Drafts the tokens that followed the row's last n-gram earlier in the row.

Source: prompt lookup decoding, github.com/apoorvumang/prompt-lookup-decoding. Among several
matches the longest n-gram wins, then the earliest, as in vLLM, so acceptance rates are comparable.
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

_EMPTY = np.empty(0, np.int32)


def continuation(
    tokens: npt.NDArray[np.int32], min_n: int, max_n: int, k: int
) -> npt.NDArray[np.int32]:
    """The tokens after the earliest occurrence of the longest n-gram that `tokens` end with.

    Args:
        tokens: int32 [T], the row so far.
        min_n, max_n: the n-gram has min_n to max_n tokens.
        k: the maximum number of tokens to return.

    Returns:
        int32 [at most k], a view into `tokens`; empty without a match.
    """
    # Positions where an earlier occurrence of the last n tokens ends; fewer as n grows.
    ends = np.flatnonzero(tokens[:-1] == tokens[-1])
    start = int(ends[0]) + 1 if ends.size and min_n == 1 else 0
    for n in range(2, max_n + 1):
        ends = ends[ends >= n - 1]
        if not ends.size:
            break
        ends = ends[tokens[ends - n + 1] == tokens[-n]]
        if ends.size and n >= min_n:
            start = int(ends[0]) + 1
    return tokens[start : start + k] if start else _EMPTY


class NgramProposer:
    """Searches every row for its own last n-gram. Has no state, so it never lags."""

    weights_bytes = 0

    def __init__(self, min_n: int, max_n: int) -> None:
        self._min_n = min_n
        self._max_n = max_n

    def propose(self, batch: DraftBatch) -> Drafts:
        """The `continuation` of each row."""
        return Drafts(
            [
                continuation(batch.context(i), self._min_n, self._max_n, int(k)).tolist()
                for i, k in enumerate(batch.k)
            ]
        )

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
