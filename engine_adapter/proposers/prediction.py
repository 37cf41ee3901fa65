"""`prediction`: drafts a text that the client predicts, wherever the row follows it.

The body's `prediction` (OpenAI's predicted outputs) comes with the request. A row follows its
prediction from the start; where it departs from it, it is put back where its last tokens stand in
the prediction, as prompt lookup does (github.com/apoorvumang/prompt-lookup-decoding): the longest
match wins, and of those the one that is nearest to where the row had left.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import Capabilities, DraftHost, ProposerMethod, ProposerSpec

Tokens = npt.NDArray[np.int32]


def position_after(
    tail: Tokens, predicted: Tokens, near: int, min_n: int, max_n: int
) -> int | None:
    """The position in `predicted` behind the longest n-gram that ends `tail`, nearest to `near`.

    Args:
        tail: int32 [T], the tokens generated so far.
        predicted: int32 [P].
        min_n, max_n: the n-gram's length lies in [min_n, max_n].

    Returns:
        A position in [min_n, P], or `None` without a match.
    """
    found = None
    ends = np.arange(1, len(predicted) + 1)
    for n in range(1, min(max_n, len(tail)) + 1):
        ends = ends[ends >= n]
        ends = ends[predicted[ends - n] == tail[-n]]
        if not ends.size:
            break
        if n >= min_n:
            found = ends
    if found is None:
        return None
    # Of two as near, the later: texts go on.
    return int(found[::-1][np.abs(found[::-1] - near).argmin()])


@dataclass(slots=True)
class _Place:
    """Where a row stands in its prediction.

    Attributes:
        read: generated tokens that were compared with the prediction.
        at: the position of the token that is predicted next.
        follows: whether the row is at `at`; if not, it left there.
    """

    read: int = 0
    at: int = 0
    follows: bool = True

    def advance(self, generated: Tokens, predicted: Tokens, min_n: int, max_n: int) -> None:
        """Takes in what was generated since."""
        fresh = generated[self.read :]
        self.read = len(generated)
        if self.follows:
            expected = predicted[self.at : self.at + len(fresh)]
            same = fresh[: len(expected)] == expected
            agreed = len(same) if same.all() else int(same.argmin())
            self.at += agreed
            self.follows = agreed == len(fresh)
        if not self.follows:
            found = position_after(generated, predicted, self.at, min_n, max_n)
            if found is not None:
                self.at, self.follows = found, True


class PredictionProposer:
    """Follows each row in its prediction; a row without one gets no drafts.

    What it keeps of a row follows from the row's tokens, so it never lags.
    """

    weights_bytes = 0

    def __init__(self, min_n: int, max_n: int) -> None:
        self._min_n = min_n
        self._max_n = max_n
        self._places: dict[str, _Place] = {}

    def propose(self, batch: DraftBatch) -> Drafts:
        """What each row's prediction goes on with."""
        return batch.cut([self._rest(batch, i) for i in range(len(batch.rows))])

    def _rest(self, batch: DraftBatch, i: int) -> list[int]:
        predicted = None if batch.predicted is None else batch.predicted[i]
        if predicted is None:
            return []
        place = self._places.setdefault(batch.request_ids[i], _Place())
        generated = batch.context(i)[batch.num_prompt_tokens[i] :]
        place.advance(generated, predicted, self._min_n, self._max_n)
        if not place.follows:
            return []
        rest: list[int] = predicted[place.at : place.at + int(batch.k[i])].tolist()
        return rest

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drops the places of requests that have ended."""
        for request_id in request_ids:
            self._places.pop(request_id, None)


def _validate(spec: ProposerSpec) -> None:
    low, high = spec.options["prediction_lookup_min"], spec.options["prediction_lookup_max"]
    for name, value in (("prediction_lookup_min", low), ("prediction_lookup_max", high)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    if low > high:
        raise ValueError(
            f"prediction_lookup_min ({low}) must not exceed prediction_lookup_max ({high})"
        )


def _create(spec: ProposerSpec, host: DraftHost) -> PredictionProposer:
    return PredictionProposer(
        spec.options["prediction_lookup_min"], spec.options["prediction_lookup_max"]
    )


METHOD = ProposerMethod(
    name="prediction",
    capabilities=Capabilities(prediction=True),
    default_k=8,
    options={"prediction_lookup_min": 2, "prediction_lookup_max": 8},
    validate=_validate,
    create=_create,
)
"""The catalog's entry."""
