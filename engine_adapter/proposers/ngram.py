"""`ngram`: prompt lookup. Drafts the tokens that followed the row's last n-gram earlier in the row.

Source: prompt lookup decoding, github.com/apoorvumang/prompt-lookup-decoding. Among several
matches the longest n-gram wins, then the earliest, as in vLLM, so acceptance rates are comparable.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import (
    Capabilities,
    DraftHost,
    OptionError,
    ProposerMethod,
    ProposerSpec,
)
from engine_adapter.seam.text import short_repr

_MOST_ON_DEVICE = 16
"""The longest n-gram that is searched for on a device, which takes five operations for each n."""


class NgramProposer:
    """Searches every row for its own last n-gram. Has no state, so it never lags."""

    weights_bytes = 0

    def __init__(self, min_n: int, max_n: int) -> None:
        # It imports numba, which the gateway need not have.
        from engine_adapter.proposers.ngram_search import find_continuations

        self._min_n = min_n
        self._max_n = max_n
        self._find_continuations = find_continuations

    def propose(self, batch: DraftBatch) -> Drafts:
        """The continuation of each row, at most k tokens."""
        drafted = np.zeros((len(batch.k), batch.k.max(initial=0)), np.int64)
        counts = np.zeros(len(batch.k), np.int64)
        self._find_continuations(
            *(batch.token_ids, batch.rows, batch.prefix_lengths, batch.k),
            *(self._min_n, self._max_n, drafted, counts),
        )
        return Drafts([row[:n] for row, n in zip(drafted.tolist(), counts.tolist(), strict=True)])

    def look_up(self, tokens: Any, k: int) -> Any:
        """See `DeviceLookup`."""
        from engine_adapter.proposers.device_lookup import find_continuations

        if self._max_n > _MOST_ON_DEVICE:
            return None
        return find_continuations(tokens, k, self._min_n, self._max_n)

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
