"""A proposer's input and output in one step: a `DraftBatch` and `Drafts`. Python and numpy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class Constraint(Protocol):
    """The structured output of a request, where one of its rows has come to."""

    def forced(self, count: int) -> list[int]:
        """The next tokens, at most `count`, if the constraint leaves one text; else none."""
        ...


class DraftSampler(Protocol):
    """Draws draft tokens for the R rows of a batch, as their requests would have them.

    Only tokens are drawn that the request's options and its structured output allow there, with
    the logits that its bias and its penalties give them.
    """

    @property
    def samples(self) -> bool:
        """Whether drafts of a row are sampled; otherwise all are the most likely tokens."""
        ...

    def draw(self, logits: Any, rows: npt.NDArray[np.intp], depth: int) -> tuple[Any, Any]:
        """Draws the next token of N rows: the most likely one for a row that is not sampled.

        What is drawn depends on the drafts before, so depths come in order, from 0.

        Args:
            logits: [N, V], a tensor; not changed.
            rows: the index of each logits row among the R rows of the batch, [N].
            depth: how many drafts precede this one in each row.

        Returns:
            The tokens, int64 [N], and the distributions that they were drawn from, float32
            [N, V], for `Drafts.probabilities`; `None` unless `samples`.
        """
        ...

    def is_open(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_] | None:
        """Which of N rows draft further after the draws so far, bool [N].

        A row that does not may be left out of the next draws: they are dropped. `None` if all draft
        further, or if the answer would cost a wait for the device.
        """
        ...

    def select(self, index: npt.NDArray[np.intp]) -> "DraftSampler":
        """The sampler for the rows at `index`, [N]."""
        ...


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """The R rows for which one proposer drafts in one step. Read only.

    Attributes:
        rows: int array [R]: the rows' indices in the engine's batch of B rows.
        request_ids: the R request ids.
        num_tokens: int array [R]: committed tokens of each row, including the newest.
        num_prompt_tokens: int array [R]: how many of them belong to the prompt.
        num_computed: int array [R]: how many the target had read before this step. Those of them
            that the proposer has not read are its lag.
        k: int array [R]: the maximum number of tokens to draft for each row. 0 is a row in
            mid-prompt, which is only read; only methods with draft KV get such rows.
        token_ids: int32 array [B, max_model_len], the tokens of the engine's batch; row `rows[i]`
            is valid in [0, prefix_lengths[i]).
        hidden: tensor [R, H] on the engine's device and in its dtype: the target's final hidden
            state from which each row's newest token was sampled, at position num_tokens[i] - 2.
            `None` if the method does not have the capability `hidden_states`.
        predicted: the predicted output of each row's request, int32 [P], or `None` for a request
            without one. `None` if the method does not have the capability `prediction`.
        constraints: the structured output of each row's request, or `None` for a request without.
            `None` if the method does not have the capability `constraint`.
        sampling: draws the drafts; `None` if every draft is the most likely token.
        num_continued: int array [R]: how many drafts of other members of a chain follow each row's
            committed tokens in `token_ids`; the proposer continues them. `None` for none, and
            always if the method does not have the capability `continues`.
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
    constraints: Sequence[Constraint | None] | None = None
    sampling: DraftSampler | None = None
    num_continued: npt.NDArray[np.int64] | None = None

    @property
    def prefix_lengths(self) -> npt.NDArray[np.int64]:
        """The tokens before each row's draft, committed ones and drafts of others: int64 [R]."""
        if self.num_continued is None:
            return self.num_tokens
        return self.num_tokens + self.num_continued

    def prefix(self, i: int) -> npt.NDArray[np.int32]:
        """The tokens before the i-th row's draft: int32 [prefix_lengths[i]], a view."""
        return self.token_ids[self.rows[i], : self.prefix_lengths[i]]

    def context(self, i: int) -> npt.NDArray[np.int32]:
        """The committed tokens of the i-th row: int32 [num_tokens[i]], a view."""
        return self.token_ids[self.rows[i], : self.num_tokens[i]]

    def draw(self, logits: Any, depth: int) -> tuple[Any, Any]:
        """Draws the next token of every row: the most likely one, unless drafts are sampled.

        Depths come in order, from 0.

        Args:
            logits: [R, V], a tensor; not changed.
            depth: how many drafts precede this one.

        Returns:
            The tokens, int64 [R], and the distributions that they were drawn from, float32
            [R, V], or `None` if they are not sampled.
        """
        if self.sampling is None:
            return logits.argmax(-1), None
        return self.sampling.draw(logits, np.arange(len(self.rows)), depth)

    @property
    def is_done(self) -> bool:
        """Whether no row drafts further, so that the rest of the draws can be left out."""
        open_rows = (
            None if self.sampling is None else self.sampling.is_open(np.arange(len(self.rows)))
        )
        return open_rows is not None and not open_rows.any()

    def truncate(
        self, tokens: Sequence[Sequence[int]], probabilities: Sequence[Any] | None = None
    ) -> "Drafts":
        """The drafts of the R rows, each truncated to its row's k.

        Args:
            tokens: R lists of token ids, or rows of a `DraftTable`.
            probabilities: the distributions that they were drawn from, R tensors
                [len(tokens[i]), V]; `None` if they are one-hot.
        """
        ks = self.k.tolist()
        drafts = [row[:k] for row, k in zip(tokens, ks, strict=True)]
        if probabilities is None:
            return Drafts(drafts)
        return Drafts(drafts, [row[:k] for row, k in zip(probabilities, ks, strict=True)])

    def select(
        self, index: npt.NDArray[np.intp], k: npt.NDArray[np.int64] | None = None
    ) -> "DraftBatch":
        """The batch of the rows at `index`, [N], with `k`, [N], instead of their own if given."""
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
            constraints=self.constraints and [self.constraints[i] for i in index],
            sampling=None if self.sampling is None else self.sampling.select(index),
            num_continued=None if self.num_continued is None else self.num_continued[index],
        )


@dataclass(frozen=True, slots=True)
class Drafts:
    """The drafts of a proposer in one step.

    Attributes:
        tokens: R lists of token ids, or of a model rows of a `DraftTable`. The i-th holds at most
            `batch.k[i]`; it is empty if the proposer has no draft for the row.
        probabilities: the distributions that sampled drafts were drawn from: R tensors, the i-th
            float32 [len(tokens[i]), V], or `None` for a one-hot row. `None` if all rows are
            one-hot.
        catchup_tokens: the lag, in tokens over all rows, that was removed before drafting.
    """

    tokens: Sequence[Sequence[int]]
    probabilities: Sequence[Any] | None = None
    catchup_tokens: int = 0


class DraftCollector:
    """Merges the drafts of several proposers by row; a row without drafts stays empty.

    Args:
        count: the number of rows.
    """

    def __init__(self, count: int) -> None:
        self._tokens: list[Sequence[int]] = [()] * count
        self._probabilities: list[Any] = [None] * count
        self._catchup_tokens = 0
        self._is_sampled = False

    def set(self, index: npt.NDArray[np.intp], drafts: Drafts) -> None:
        """Sets the drafts of the N rows at `index`, [N]."""
        rows = index.tolist()
        for i, tokens in zip(rows, drafts.tokens, strict=True):
            self._tokens[i] = tokens
        if drafts.probabilities is not None:
            self._is_sampled = True
            for i, probabilities in zip(rows, drafts.probabilities, strict=True):
                self._probabilities[i] = probabilities
        self._catchup_tokens += drafts.catchup_tokens

    @property
    def empty(self) -> npt.NDArray[np.bool_]:
        """Whether each row has no draft yet, bool [count]."""
        return np.array([not tokens for tokens in self._tokens], np.bool_)

    def collect(self) -> Drafts:
        """The drafts of all rows."""
        probabilities = self._probabilities if self._is_sampled else None
        return Drafts(self._tokens, probabilities, self._catchup_tokens)
