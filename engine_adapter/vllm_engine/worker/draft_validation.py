"""Validation of drafts: a faulty proposer costs its own drafts, and nothing else.

A fault is an exception or an invalid result: wrong number of rows, too many tokens, token ids
outside the vocabulary, or rows that are not probability distributions. The proposer's rows then
get no drafts in that step. On a device, where to read a distribution would be a wait, such drafts
are verified as certain ones, and the fault is reported with the step's outputs. A proposer that
fails repeatedly is quarantined (`core.quarantine`).

The scheduler decides on quarantine, so that all ranks follow from the same step on. It counts the
faults of rank 0 only, whose drafts are used; an exception on another rank is logged there. Sampled
drafts that a rank lacks are verified by none. Two faults cannot be contained. After a
`torch.AcceleratorError` the state of the device is undefined, and the engine must end with this
cause. A fault on one rank in the middle of a collective leaves the other ranks waiting. Out of
memory can be contained: the target's step is already done.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from traceback import extract_tb
from typing import Any

import numpy as np
import torch

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.draft_table import DraftRow, on_device
from engine_adapter.proposers.staging import HostCopy, joined

_MAX_DESCRIPTION = 300
_SUM_TOLERANCE = 1e-3


class BadDrafts(ValueError):
    """A proposer returned something that cannot be drafts of its batch."""


def validate_drafts(drafts: object, batch: DraftBatch, vocab_size: int) -> Drafts:
    """The drafts, with plain Python integers as ids.

    Raises:
        BadDrafts: they do not fit the batch.
        Exception: they do not even have the structure of drafts.
    """
    if not isinstance(drafts, Drafts):
        raise BadDrafts(f"returned {type(drafts).__name__} instead of Drafts")
    if type(drafts.catchup_tokens) is not int or drafts.catchup_tokens < 0:
        raise BadDrafts(f"catchup_tokens is {drafts.catchup_tokens!r}, not a count")
    sizes, ks = [len(row) for row in drafts.tokens], batch.k.tolist()
    if len(sizes) != len(ks):
        raise BadDrafts(f"returned {len(sizes)} rows for a batch of {len(ks)}")
    for size, k in zip(sizes, ks, strict=True):
        if size > k:
            raise BadDrafts(f"drafted {size} tokens for a row with k = {k}")
    rows = _validate_ids(drafts.tokens, vocab_size)
    probabilities = drafts.probabilities
    if probabilities is not None:
        probabilities = _validate_probabilities(probabilities, sizes, vocab_size)
    return Drafts(rows, probabilities, drafts.catchup_tokens)


def repair_distributions(drafts: Drafts) -> HostCopy | None:
    """Replaces each wrong distribution by one that is certain of its token, in place.

    So the text stays the target's: a draft that does not depend on the noise of its verification
    is verified exactly if it is called certain. And no step waits to hear whether a model has
    drafted from NaN or infinite logits.

    Args:
        drafts: those of `validate_drafts`, whose distributions follow each other in memory.

    Returns:
        One bool: all were distributions. `None` if there are none.
    """
    pairs = zip(drafts.tokens, drafts.probabilities or (), strict=False)
    rows = [(tokens, q) for tokens, q in pairs if q is not None and len(q)]
    if not rows:
        return None
    together = joined([q for _, q in rows])
    sums_to_one = (together.sum(dim=-1) - 1).abs() < _SUM_TOLERANCE
    is_valid = sums_to_one & (together >= 0).all(dim=-1)
    is_wrong = ~is_valid[:, None]
    tokens = torch.cat([on_device(tokens, together.device) for tokens, _ in rows])
    together.masked_fill_(is_wrong, 0.0)
    together.scatter_add_(1, tokens[:, None], is_wrong.float())
    return HostCopy(is_valid.all())


def require_distributions(are_valid: HostCopy | None) -> None:
    """Raises `BadDrafts` if `repair_distributions` had to change one; waits for its result."""
    if are_valid is not None and not are_valid.arrays()[0]:
        raise BadDrafts("probabilities must be at least 0 and sum to 1")


def describe_error(error: Exception) -> str:
    """The description of a fault in statistics and in the API: a line of 300 characters at most.

    An error without a text, as of most assertions, is described by the line that raised it.
    """
    text = " ".join(str(error).split())
    if not text and (frames := extract_tb(error.__traceback__)):
        text = f"{frames[-1].line} ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
    return f"{type(error).__name__}: {text}"[:_MAX_DESCRIPTION]


def _validate_ids(tokens: Sequence[Sequence[Any]], vocab_size: int) -> Sequence[Sequence[int]]:
    # A model's are drawn from logits over the vocabulary, and to read them would wait for them.
    lists = [row for row in tokens if type(row) is not DraftRow]
    if not lists:
        return tokens
    flat = list(chain.from_iterable(lists))
    if set(map(type, flat)) == {int}:
        _check_range(min(flat), max(flat), vocab_size)
    elif flat:
        ids = np.array(flat)
        if ids.dtype.kind not in "iu":
            raise BadDrafts(f"token ids must be integers, not {ids.dtype}")
        _check_range(ids.min(), ids.max(), vocab_size)
        return [row if type(row) is DraftRow else [*map(int, row)] for row in tokens]
    return [row if type(row) in (DraftRow, list) else list(row) for row in tokens]


def _check_range(lowest: Any, highest: Any, vocab_size: int) -> None:
    if lowest < 0 or highest >= vocab_size:
        raise BadDrafts(f"drafted ids in [{lowest}, {highest}]; valid ids are in [0, {vocab_size})")


def _validate_probabilities(
    probabilities: Sequence[torch.Tensor | None], sizes: Sequence[int], vocab_size: int
) -> list[torch.Tensor | None]:
    """Checks one entry per row: `None`, or float32 [sizes[i], V], a distribution for each token.

    The rows that it returns lie one after the other in memory, so that verification need not copy
    them again.
    """
    present = []
    for row, size in zip(probabilities, sizes, strict=True):
        if row is not None:
            if tuple(row.shape) != (size, vocab_size):
                shape = tuple(row.shape)
                raise BadDrafts(f"probabilities are of shape {shape}, not {(size, vocab_size)}")
            present.append(row)
    if not present:
        return list(probabilities)
    parts = iter(torch.split(joined(present), [len(row) for row in present]))
    return [None if row is None else next(parts) for row in probabilities]
