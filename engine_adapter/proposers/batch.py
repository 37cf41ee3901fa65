"""What a proposer is asked in a step, and what it answers: rows of tokens. Python and numpy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class DraftSampler(Protocol):
    """Draws drafts for the R rows of a batch, as their requests are sampled."""

    def draw(self, logits: Any, rows: npt.NDArray[np.intp], depth: int) -> tuple[Any, Any]:
        """The next token of some rows: the likeliest one for a request at temperature 0.

        Args:
            logits: [N, V], a tensor; not changed.
            rows: which of the R rows the logits belong to, [N].
            depth: how many drafts stand before in each row.

        Returns:
            The tokens, int64 [N], and what they were drawn from, float32 [N, V], for
            `Drafts.probabilities`.
        """
        ...

    def select(self, index: npt.NDArray[np.intp]) -> "DraftSampler":
        """The same for the rows at `index`, [N]."""
        ...


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """The rows for which one proposer drafts in one step. Read only.

    Attributes:
        rows: int array [R]: indices into the engine's batch.
        request_ids: the R requests' ids.
        num_tokens: int array [R]: committed tokens of each row, the newest included.
        num_prompt_tokens: int array [R]: how many of them are the prompt's.
        num_computed: int array [R]: how many the target had read before this step; what a
            proposer lacks of these is its lag.
        k: int array [R]: the most tokens to draft for each row. 0 is a row in the middle of its
            prompt, to be read only; methods without draft KV never see one.
        token_ids: int32 array [B, max_model_len], the whole batch's tokens; row `rows[i]` is
            valid in [0, num_tokens[i]).
        hidden: tensor [R, H] on the engine's device, of its dtype: the target's final hidden
            state from which each row's newest token was sampled, so that of position
            num_tokens[i] - 2. `None` for methods that do not ask for it.
        predicted: for each of the R rows the int32 [P] tokens that its request predicts, or
            `None`. `None` altogether for methods that do not ask for it.
        sampling: draws the drafts; `None` where each is to be the likeliest token.
    """

    rows: npt.NDArray[np.intp]
    request_ids: Sequence[str]
    num_tokens: npt.NDArray[np.int64]
    num_prompt_tokens: npt.NDArray[np.int64]
    num_computed: npt.NDArray[np.int64]
    k: npt.NDArray[np.int64]
    token_ids: npt.NDArray[np.int32]
    hidden: Any = None
    predicted: Sequence[npt.NDArray[np.int32] | None] | None = None
    sampling: DraftSampler | None = None

    def context(self, i: int) -> npt.NDArray[np.int32]:
        """The committed tokens of the i-th row: int32 [num_tokens[i]], a view."""
        return self.token_ids[self.rows[i], : self.num_tokens[i]]

    def draw(self, logits: Any, depth: int) -> tuple[Any, Any]:
        """The next token of every row: the likeliest one, unless the drafts are sampled.

        Args:
            logits: [R, V], a tensor; not changed.
            depth: how many drafts stand before.

        Returns:
            The tokens, int64 [R], and what they were drawn from: float32 [R, V], or `None`.
        """
        if self.sampling is None:
            return logits.argmax(-1), None
        return self.sampling.draw(logits, np.arange(len(self.rows)), depth)

    def cut(self, tokens: Sequence[list[int]], drawn_from: Sequence[Any] | None = None) -> "Drafts":
        """Drafts of the R rows of `tokens`, each cut to its row's k.

        Args:
            tokens: R lists of at most N ids.
            drawn_from: R tensors [N, V], what they were drawn from; `None` if they are one-hot.
        """
        ks = self.k.tolist()
        drafts = [row[:k] for row, k in zip(tokens, ks, strict=True)]
        if drawn_from is None:
            return Drafts(drafts)
        return Drafts(drafts, [row[:k] for row, k in zip(drawn_from, ks, strict=True)])

    def select(
        self, index: npt.NDArray[np.intp], k: npt.NDArray[np.int64] | None = None
    ) -> "DraftBatch":
        """The rows at `index` ([N], into this batch's R), with the N entries of `k` if given."""
        return DraftBatch(
            rows=self.rows[index],
            request_ids=[self.request_ids[i] for i in index],
            num_tokens=self.num_tokens[index],
            num_prompt_tokens=self.num_prompt_tokens[index],
            num_computed=self.num_computed[index],
            k=self.k[index] if k is None else k,
            token_ids=self.token_ids,
            hidden=None if self.hidden is None else self.hidden[index],
            predicted=None if self.predicted is None else [self.predicted[i] for i in index],
            sampling=None if self.sampling is None else self.sampling.select(index),
        )


@dataclass(frozen=True, slots=True)
class Drafts:
    """What a proposer drafted in one step.

    Attributes:
        tokens: R lists of token ids; the i-th holds at most `batch.k[i]`, and none where the
            proposer has nothing to say.
        probabilities: for drafts that were sampled, the distributions they were sampled from:
            R tensors, the i-th float32 [len(tokens[i]), V], or `None` for a one-hot row. `None`
            altogether where all are one-hot.
        catchup_tokens: the lag, in tokens over all rows, that was removed before drafting.
    """

    tokens: Sequence[Sequence[int]]
    probabilities: Sequence[Any] | None = None
    catchup_tokens: int = 0


class DraftRows:
    """Drafts gathered row by row from several proposers; a row that gets none stays empty.

    Args:
        count: how many rows.
    """

    def __init__(self, count: int) -> None:
        self._tokens: list[Sequence[int]] = [[] for _ in range(count)]
        self._probabilities: list[Any] = [None] * count
        self._catchup_tokens = 0

    def put(self, index: npt.NDArray[np.intp], drafts: Drafts) -> None:
        """Takes the drafts of the rows at `index`, [N]."""
        places = index.tolist()
        for i, tokens in zip(places, drafts.tokens, strict=True):
            self._tokens[i] = tokens
        if drafts.probabilities is not None:
            for i, probabilities in zip(places, drafts.probabilities, strict=True):
                self._probabilities[i] = probabilities
        self._catchup_tokens += drafts.catchup_tokens

    @property
    def empty(self) -> npt.NDArray[np.bool_]:
        """Which rows have no draft, bool [count]."""
        return np.array([not tokens for tokens in self._tokens], np.bool_)

    def drafts(self) -> Drafts:
        """All of them."""
        sampled = any(one is not None for one in self._probabilities)
        return Drafts(self._tokens, self._probabilities if sampled else None, self._catchup_tokens)
