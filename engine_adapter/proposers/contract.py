"""What a proposer is: its configuration, its needs, and the call that drafts.

Pure Python. The engine owns model execution and lends it to proposers through `DraftHost`; a
proposer owns the drafting algorithm alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine_adapter.proposers.batch import DraftBatch, Drafts

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
class ProposerMethod:
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
