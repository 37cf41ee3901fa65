"""`ngram`: prompt lookup. Drafts what followed the same n-gram earlier in the row.

Source: prompt lookup decoding, github.com/apoorvumang/prompt-lookup-decoding; the choice among
matches is vLLM's (the longest n-gram, and of those the earliest), so acceptance compares.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import Capabilities, DraftHost, ProposerMethod, ProposerSpec

_NOTHING = np.empty(0, np.int32)


def continuation(
    tokens: npt.NDArray[np.int32], min_n: int, max_n: int, k: int
) -> npt.NDArray[np.int32]:
    """What followed the earliest occurrence of the longest n-gram that ends `tokens`.

    Args:
        tokens: int32 [n], the row so far.
        min_n, max_n: the n-gram's length lies in [min_n, max_n].
        k: the most tokens to return.

    Returns:
        int32 [at most k], a view into `tokens`; empty without a match.
    """
    # Where the last n tokens also end earlier; narrowed as n grows.
    ends = np.flatnonzero(tokens[:-1] == tokens[-1])
    start = int(ends[0]) + 1 if ends.size and min_n == 1 else 0
    for n in range(2, max_n + 1):
        ends = ends[ends >= n - 1]
        if not ends.size:
            break
        ends = ends[tokens[ends - n + 1] == tokens[-n]]
        if ends.size and n >= min_n:
            start = int(ends[0]) + 1
    return tokens[start : start + k] if start else _NOTHING


class NgramProposer:
    """Looks every row up in itself. Keeps nothing between steps, so it never lags."""

    weights_bytes = 0

    def __init__(self, min_n: int, max_n: int) -> None:
        self._min_n = min_n
        self._max_n = max_n

    def propose(self, batch: DraftBatch) -> Drafts:
        """Each row's continuation of its longest repeated n-gram."""
        return Drafts(
            [
                continuation(batch.context(i), self._min_n, self._max_n, int(k)).tolist()
                for i, k in enumerate(batch.k)
            ]
        )

    def forget(self, request_ids: Sequence[str]) -> None:
        """Nothing is kept."""


def _validate(spec: ProposerSpec) -> None:
    low, high = spec.options["prompt_lookup_min"], spec.options["prompt_lookup_max"]
    for name, value in (("prompt_lookup_min", low), ("prompt_lookup_max", high)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    if low > high:
        raise ValueError(f"prompt_lookup_min ({low}) must not exceed prompt_lookup_max ({high})")


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
"""The catalog's entry."""
