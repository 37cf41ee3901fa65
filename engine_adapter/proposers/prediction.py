"""`prediction`: drafts from the output that the client predicts, as long as the row follows it.

The request brings its predicted output in the field `prediction` (OpenAI's predicted outputs). The
row's output is compared with it from its first token on. After a difference, the last tokens of
the row are looked up in the prediction, as in prompt lookup
(github.com/apoorvumang/prompt-lookup-decoding), and drafting resumes after the match. The longest
match wins, then the one nearest to the position of the difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import Capabilities, DraftHost, ProposerMethod, ProposerSpec
from engine_adapter.proposers.ngram import check_lengths

Tokens = npt.NDArray[np.int32]


def position_after(
    generated: Tokens, predicted: Tokens, near: int, min_n: int, max_n: int
) -> int | None:
    """The position in `predicted` after the longest n-gram that `generated` ends with.

    Args:
        generated: int32 [T], the tokens generated so far.
        predicted: int32 [P], the predicted output.
        near: of several longest matches, the one that ends nearest to this position wins.
        min_n, max_n: the n-gram has min_n to max_n tokens.

    Returns:
        A position in [min_n, P], or `None` without a match.
    """
    matches = None
    ends = np.arange(1, len(predicted) + 1)
    for n in range(1, min(max_n, len(generated)) + 1):
        ends = ends[ends >= n]
        ends = ends[predicted[ends - n] == generated[-n]]
        if not ends.size:
            break
        if n >= min_n:
            matches = ends
    if matches is None:
        return None
    # Of two equally near positions the later one wins: a text moves forward.
    return int(matches[::-1][np.abs(matches[::-1] - near).argmin()])


@dataclass(slots=True)
class _Cursor:
    """The position of a row in its prediction.

    Attributes:
        num_read: how many generated tokens have been compared with the prediction.
        position: the position of the next token in the prediction.
        follows: whether the row follows the prediction. If not, it left it at `position`.
    """

    num_read: int = 0
    position: int = 0
    follows: bool = True

    def advance(self, generated: Tokens, predicted: Tokens, min_n: int, max_n: int) -> None:
        """Compares the tokens that were generated since the last call."""
        new_tokens = generated[self.num_read :]
        self.num_read = len(generated)
        if self.follows:
            predicted_tokens = predicted[self.position : self.position + len(new_tokens)]
            equal = new_tokens[: len(predicted_tokens)] == predicted_tokens
            num_equal = len(equal) if equal.all() else int(equal.argmin())
            self.position += num_equal
            self.follows = num_equal == len(new_tokens)
        if not self.follows:
            position = position_after(generated, predicted, self.position, min_n, max_n)
            if position is not None:
                self.position, self.follows = position, True


class PredictionProposer:
    """Drafts the rest of each row's prediction; a row without one gets no drafts.

    Comparing the tokens of several steps at once costs nothing extra, so it never lags.
    """

    weights_bytes = 0

    def __init__(self, min_n: int, max_n: int) -> None:
        self._min_n = min_n
        self._max_n = max_n
        self._cursors: dict[str, _Cursor] = {}

    def propose(self, batch: DraftBatch) -> Drafts:
        """The next tokens of each row's prediction, if the row follows it."""
        return batch.truncate([self._next_tokens(batch, i) for i in range(len(batch.rows))])

    def _next_tokens(self, batch: DraftBatch, i: int) -> list[int]:
        predicted = None if batch.predicted is None else batch.predicted[i]
        if predicted is None:
            return []
        cursor = self._cursors.setdefault(batch.request_ids[i], _Cursor())
        generated = batch.context(i)[batch.num_prompt_tokens[i] :]
        cursor.advance(generated, predicted, self._min_n, self._max_n)
        if not cursor.follows:
            return []
        tokens: list[int] = predicted[cursor.position : cursor.position + int(batch.k[i])].tolist()
        return tokens

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drops the cursors of requests that have ended."""
        for request_id in request_ids:
            self._cursors.pop(request_id, None)


def _validate(spec: ProposerSpec) -> None:
    check_lengths(spec, "prediction_lookup_min", "prediction_lookup_max")


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
"""The entry in `METHODS`."""
