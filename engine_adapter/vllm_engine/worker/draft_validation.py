"""A faulty proposer costs its own drafts, and nothing else.

A fault is an exception, or drafts that are none: the wrong number of rows, more tokens than were
asked for, ids that are no tokens of the target, probabilities that are none. The proposer's rows
then go without drafts for the step. Who faults again and again is not asked any more.

The verdict is the scheduler's, so that every rank follows it from the same step on. It rests on
rank 0 alone, whose drafts are the ones that count; a fault on another rank is logged there. Not
contained is `torch.AcceleratorError`: after it nothing on the device can be trusted, and the
engine must end with this cause. Out of memory is contained: the target's step is already done.
A fault in the middle of a collective, on one rank only, cannot be: the others wait in it.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.proposers.batch import DraftBatch, Drafts

_MAX_CAUSE = 300
_TOLERANCE = 1e-3


class BadDrafts(ValueError):
    """A proposer returned what cannot be drafts of the batch that it was given."""


def checked(drafts: object, batch: DraftBatch, vocab_size: int) -> Drafts:
    """The drafts, with plain integers for ids.

    Raises:
        BadDrafts: they are not drafts of the batch.
        Exception: they are no such thing at all.
    """
    if not isinstance(drafts, Drafts):
        raise BadDrafts(f"returned {type(drafts).__name__} in place of Drafts")
    if type(drafts.catchup_tokens) is not int or drafts.catchup_tokens < 0:
        raise BadDrafts(f"catchup_tokens is {drafts.catchup_tokens!r}, not a count")
    sizes = np.array([len(row) for row in drafts.tokens], np.int64)
    if len(sizes) != len(batch.k):
        raise BadDrafts(f"returned {len(sizes)} rows for a batch of {len(batch.k)}")
    if (sizes > batch.k).any():
        i = int((sizes - batch.k).argmax())
        raise BadDrafts(f"drafted {sizes[i]} tokens where at most {batch.k[i]} were asked for")
    ids = _checked_ids(list(chain.from_iterable(drafts.tokens)), vocab_size)
    if drafts.probabilities is not None:
        _check_probabilities(drafts.probabilities, sizes, vocab_size)
    ends = sizes.cumsum()
    rows = [ids[a:b] for a, b in zip((ends - sizes).tolist(), ends.tolist(), strict=True)]
    return Drafts(rows, drafts.probabilities, drafts.catchup_tokens)


def cause(error: Exception) -> str:
    """What a fault is shown as."""
    return f"{type(error).__name__}: {error}"[:_MAX_CAUSE]


def _checked_ids(tokens: list[Any], vocab_size: int) -> list[int]:
    ids = np.array(tokens)
    if not ids.size:
        return []
    if ids.dtype.kind not in "iu":
        raise BadDrafts(f"token ids must be integers, not {ids.dtype}")
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise BadDrafts(f"drafted ids in [{ids.min()}, {ids.max()}]; they are in [0, {vocab_size})")
    plain: list[int] = ids.tolist()
    return plain


def _check_probabilities(
    probabilities: Sequence[torch.Tensor | None], sizes: npt.NDArray[np.int64], vocab_size: int
) -> None:
    """One entry per row, `None` or a distribution for each token: float32 [sizes[i], V]."""
    given = []
    for row, size in zip(probabilities, sizes.tolist(), strict=True):
        if row is not None:
            if tuple(row.shape) != (size, vocab_size):
                shape = tuple(row.shape)
                raise BadDrafts(f"probabilities are of shape {shape}, not {(size, vocab_size)}")
            given.append(row)
    if given:
        every = torch.cat(given)
        sums_to_one = ((every.sum(dim=-1) - 1).abs() < _TOLERANCE).all()
        if not bool(sums_to_one & (every >= 0).all()):
            raise BadDrafts("probabilities must be at least 0 and sum to 1")
