"""What a proposer is: its configuration, its needs, and the call that drafts.

Pure Python and numpy. The engine owns model execution and lends it to proposers through
`DraftHost`; a proposer owns the drafting algorithm alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

RESERVED_NAMES = frozenset({"auto", "none", "primary", "backup", "disable"})
"""Names that mean something else on the wire; no proposer may bear them."""


@dataclass(frozen=True, slots=True)
class ProposerSpec:
    """A named, configured proposer, as `--proposer` gives it.

    Attributes:
        name: how requests, switches and metrics call it.
        method: an entry of the catalog, e.g. `ngram`.
        num_speculative_tokens: k, the most tokens it drafts in one step.
        model: path or id of its weights, where the method has weights.
        options: the method's own settings, by vLLM's names, already validated.
    """

    name: str
    method: str
    num_speculative_tokens: int
    model: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a method needs from the engine.

    Attributes:
        model: it has weights of its own (`model` is required).
        tokenizer: its weights come with a tokenizer, which must be the target's.
        draft_kv: it keeps KV of its own, reserved when the engine starts; a method without can
            be loaded while the engine serves.
        hidden_states: it drafts from the target's last hidden states (`DraftBatch.hidden`).
        members: it drafts through other proposers, whose names its option `members` lists; it
            needs what they need, and their KV is reserved with them.
        prediction: it drafts from what the request predicts (`DraftBatch.predicted`).
    """

    model: bool = False
    tokenizer: bool = False
    draft_kv: bool = False
    hidden_states: bool = False
    members: bool = False
    prediction: bool = False

    def __or__(self, other: "Capabilities") -> "Capabilities":
        """What is needed by either."""
        return Capabilities(
            model=self.model or other.model,
            tokenizer=self.tokenizer or other.tokenizer,
            draft_kv=self.draft_kv or other.draft_kv,
            hidden_states=self.hidden_states or other.hidden_states,
            members=self.members or other.members,
            prediction=self.prediction or other.prediction,
        )


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

    def cut(self, tokens: Sequence[list[int]]) -> "Drafts":
        """One-hot drafts of the R rows of `tokens`, each cut to its row's k."""
        return Drafts([row[:k] for row, k in zip(tokens, self.k.tolist(), strict=True)])

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


class Proposer(Protocol):
    """A loaded proposer. Lives in the engine's process; no row is drafted for twice in a step."""

    @property
    def weights_bytes(self) -> int:
        """What its own weights take, in bytes, on this rank; 0 where it has none."""
        ...

    def propose(self, batch: DraftBatch) -> Drafts:
        """Drafts for every row of the batch. A row's drafts depend on that row alone."""
        ...

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drops what is kept of requests that have ended. Unknown ids are ignored."""
        ...


class DraftModel(Protocol):
    """A draft model that the engine runs for a proposer, with KV that the engine keeps."""

    @property
    def weights_bytes(self) -> int:
        """What its weights take, in bytes, on this rank."""
        ...

    def draft(self, batch: DraftBatch) -> Drafts:
        """Drafts `batch.k[i]` tokens for each row.

        Committed tokens whose draft KV is missing are read first, so a row drafts as well
        after a switch, a prefix-cache hit or a preemption as if it had never been away.
        """
        ...


class Member(Protocol):
    """A loaded proposer as another one asks it: what it gets wrong is contained before."""

    @property
    def num_speculative_tokens(self) -> int:
        """Its own k."""
        ...

    @property
    def draft_kv(self) -> bool:
        """Whether it reads rows in mid-prompt along."""
        ...

    def draft(self, batch: DraftBatch) -> Drafts:
        """What it drafts for each row; nothing where it fails or is not to be asked."""
        ...


class Target(Protocol):
    """The loaded target, for heads that draft from its hidden states."""

    @property
    def hidden_size(self) -> int:
        """H, the width of its hidden states."""
        ...

    @property
    def vocab_size(self) -> int:
        """V; its logits may be padded beyond it."""
        ...

    @property
    def dtype(self) -> Any:
        """The torch dtype of its hidden states; heads are loaded in it."""
        ...

    @property
    def device(self) -> Any:
        """The torch device of its hidden states."""
        ...

    def logits(self, hidden: Any) -> Any:
        """The target's language-model head: [N, H] -> logits [N, V]."""
        ...


class DraftHost(Protocol):
    """What an engine lends to the proposers that it creates."""

    @property
    def target(self) -> Target:
        """The target, loaded before any proposer."""
        ...

    def draft_model(self, spec: ProposerSpec) -> DraftModel:
        """The runner of the spec's draft model, loaded with the engine."""
        ...

    def member(self, name: str) -> Member:
        """Another proposer, by its name; it may be loaded later than the one that asks."""
        ...

    def draft_head(self, spec: ProposerSpec) -> DraftModel:
        """The same for a head with KV that reads the target's hidden states of every position."""
        ...


@dataclass(frozen=True, slots=True)
class TargetSizes:
    """What is known of a target before it loads, as in `Target`.

    Attributes:
        num_layers: its decoder layers; `None` where only methods without draft KV are checked.
        tensor_parallel_size: ranks that share each of its layers.
    """

    hidden_size: int
    vocab_size: int
    num_layers: int | None = None
    tensor_parallel_size: int = 1


def no_check(spec: ProposerSpec, target: TargetSizes) -> None:
    """For methods that nothing but their options can make fail."""


@dataclass(frozen=True, slots=True)
class Method:
    """An entry of the catalog.

    Attributes:
        name: the method's name, as in `ProposerSpec.method`.
        capabilities: what it needs.
        default_k: k where the configuration gives none; `None` is its members' largest.
        options: the options it knows, with their defaults.
        validate: raises `ValueError`, naming the option, if a spec's options cannot work.
        create: builds the proposer; imports what it needs when called. It changes nothing but
            what it returns, so a method without draft KV can be created beside a running engine.
            Raises `ValueError` for what `check` raises it for.
        check: raises `ValueError`, naming file and field, if the spec's weights cannot work with
            the target. Reads configurations and headers, no weights.
    """

    name: str
    capabilities: Capabilities
    default_k: int | None
    options: Mapping[str, Any]
    validate: Callable[[ProposerSpec], None]
    create: Callable[[ProposerSpec, DraftHost], Proposer]
    check: Callable[[ProposerSpec, TargetSizes], None] = no_check
