"""The contract of a proposer: its configuration, its capabilities, and the call that drafts.

Pure Python. A proposer implements only the drafting algorithm. The engine executes models and
makes them available to proposers through `DraftHost`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from engine_adapter.policies.names import GOODPUT, POLICY_NAMES
from engine_adapter.proposers.batch import DraftBatch, Drafts

RESERVED_NAMES = frozenset({GOODPUT, "none", "primary", "backup", "disable", *POLICY_NAMES})
"""Reserved names: they have another meaning on the wire, so they cannot name a proposer."""


class OptionError(ValueError):
    """An invalid value of a proposer's option. The text is the option, a space, and the message.

    Attributes:
        option: the option's name.
    """

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"{option} {message}")
        self.option = option


@dataclass(frozen=True, slots=True)
class ProposerSpec:
    """A named proposer and its configuration, parsed from `--proposer`.

    Attributes:
        name: the name used by requests, switches and metrics.
        method: the name of an entry in `METHODS`, e.g. `ngram`.
        num_speculative_tokens: k, the maximum number of tokens that it drafts in one step.
        model: path or hub id of its weights; `None` for a method without weights.
        options: the method's own settings under vLLM's names, already validated.
    """

    name: str
    method: str
    num_speculative_tokens: int
    model: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The requirements of a method on the engine.

    Attributes:
        model: it has its own weights, so `model` is required.
        optional_model: its weights are part of the target's checkpoint, or its own in `model`.
        tokenizer: its weights include a tokenizer, which must be the target's unless an option
            allows another.
        draft_kv: it has its own KV cache, reserved when the engine starts. Only a method without
            it can be loaded while the engine serves. Its weights are its own, or part of the
            target's checkpoint.
        hidden_states: it drafts from the target's final hidden states (`DraftBatch.hidden`).
        members: it drafts with other proposers, listed in its option `members`. It has all
            requirements of its members.
        prediction: it drafts from the request's predicted output (`DraftBatch.predicted`).
        constraint: it drafts from the request's structured output (`DraftBatch.constraints`).
        continues: it can continue the drafts of other members of a chain
            (`DraftBatch.num_continued`), as if they were the row's text.
    """

    model: bool = False
    optional_model: bool = False
    tokenizer: bool = False
    draft_kv: bool = False
    hidden_states: bool = False
    members: bool = False
    prediction: bool = False
    constraint: bool = False
    continues: bool = False

    @property
    def runs_model(self) -> bool:
        """Whether it drafts with a model, so that each draft is drawn from logits."""
        return self.model or self.draft_kv

    @property
    def is_paged_head(self) -> bool:
        """Whether it is a head with KV that can have a checkpoint of its own."""
        has_model = self.model or self.optional_model
        return has_model and self.draft_kv and not self.tokenizer

    def __or__(self, other: "Capabilities") -> "Capabilities":
        """The requirements of both."""
        names = [capability.name for capability in fields(Capabilities)]
        return Capabilities(*(getattr(self, name) or getattr(other, name) for name in names))


class Proposer(Protocol):
    """A loaded proposer, in the worker process.

    No row is drafted for twice in a step, except by a lookup in a chain: once for its text, and
    once more after the drafts of another member.
    """

    @property
    def weights_bytes(self) -> int:
        """The size of its weights on this rank, in bytes; 0 for a method without weights."""
        ...

    def propose(self, batch: DraftBatch) -> Drafts:
        """Drafts at most `batch.k[i]` tokens for the i-th row.

        A row's drafts depend only on that row, not on the rest of the batch.
        """
        ...

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drops the state of requests that have ended. Unknown ids are ignored."""
        ...


class Member(Protocol):
    """A loaded proposer that another one calls. The engine has already handled its errors."""

    @property
    def num_speculative_tokens(self) -> int:
        """Its own k."""
        ...

    @property
    def draft_kv(self) -> bool:
        """Whether it has its own KV and so must read rows in mid-prompt too."""
        ...

    @property
    def continues(self) -> bool:
        """Whether it has the capability `continues`."""
        ...

    def draft(self, batch: DraftBatch, drafts: Sequence[Sequence[int]]) -> Drafts:
        """Its drafts for each row; none if it fails or is quarantined.

        Args:
            batch: the rows.
            drafts: of each row, those that these continue; empty unless it `continues`.
        """
        ...


class Target(Protocol):
    """The loaded target, for heads that draft from its hidden states."""

    @property
    def hidden_size(self) -> int:
        """H, the width of its hidden states."""
        ...

    @property
    def vocab_size(self) -> int:
        """V. The output layer may be padded beyond it."""
        ...

    @property
    def dtype(self) -> Any:
        """The torch dtype of its hidden states. Heads are loaded in this dtype."""
        ...

    @property
    def device(self) -> Any:
        """The torch device of its hidden states."""
        ...

    def logits(self, hidden: Any) -> Any:
        """The target's output layer: hidden states [N, H] -> logits [N, V]."""
        ...


class DraftHost(Protocol):
    """The engine, as a method's `create` sees it."""

    @property
    def target(self) -> Target:
        """The target, loaded before any proposer."""
        ...

    def draft_model(self, spec: ProposerSpec) -> Proposer:
        """A proposer that runs the spec's draft model, whose KV is in the target's blocks.

        Its weights are loaded with the engine. Before it drafts, it computes the KV of committed
        tokens that it missed, so drafts after a switch, a prefix-cache hit or a preemption are as
        good as those of a proposer that was always active.
        """
        ...

    def draft_head(self, spec: ProposerSpec) -> Proposer:
        """The same for a head, which also reads the target's hidden states of every position."""
        ...

    def block_head(self, spec: ProposerSpec) -> Proposer:
        """The same for a head that drafts a whole block of tokens in one pass."""
        ...

    def query_head(self, spec: ProposerSpec) -> Proposer:
        """A proposer whose attention reads the target's KV: it has none that it could miss."""
        ...

    def member(self, name: str) -> Member:
        """The proposer of this name. It may be loaded later than the proposer that calls it."""
        ...


@dataclass(frozen=True, slots=True)
class TargetSizes:
    """The sizes in the target's configuration, known before it is loaded; see `Target`.

    Attributes:
        num_layers: its decoder layers; `None` if only methods without draft KV are checked.
        tensor_parallel_size: the number of ranks that share each layer.
        model: its folder or hub id; `None` as for `num_layers`.
        revision: the revision of the hub id; `None` for the default one.
    """

    hidden_size: int
    vocab_size: int
    num_layers: int | None = None
    tensor_parallel_size: int = 1
    model: str | None = None
    revision: str | None = None


def no_check(spec: ProposerSpec, target: TargetSizes) -> None:
    """`ProposerMethod.check` of a method that works with every target."""


def no_memory(spec: ProposerSpec, target: Target, rows: int) -> int:
    """`ProposerMethod.device_bytes` of a method that takes no memory of the device."""
    return 0


def any_members(names: Sequence[str], capabilities: Mapping[str, Capabilities]) -> None:
    """`ProposerMethod.check_members` of a method whose members may be any proposers."""


@dataclass(frozen=True, slots=True)
class ProposerMethod:
    """A drafting method, an entry in `METHODS`.

    Attributes:
        name: the method's name, as in `ProposerSpec.method`.
        capabilities: its requirements.
        default_k: k if the configuration does not set it; with members, how it follows from theirs.
        options: the options that it accepts, with their defaults.
        validate: raises `OptionError` if an option of the spec is invalid.
        create: builds the proposer; imports heavy libraries only when called. It has no side
            effects, so a method without draft KV can be created while the engine serves. Raises
            `ValueError` in the same cases as `check`.
        check: raises `ValueError`, with the file and the field, if the spec's weights do not fit
            the target. Reads configurations and headers, but no weights.
        device_bytes: how much of the device's memory a proposer takes that is loaded while the
            engine serves: its weights, and its largest tensors when it drafts for so many rows.
            Sampled drafts are not counted. Reads what `check` reads, and raises the same.
        check_members: raises `OptionError` if a list of members cannot work; gets their names and
            the capabilities of each.
    """

    name: str
    capabilities: Capabilities
    default_k: int | Callable[[Iterable[int]], int]
    options: Mapping[str, Any]
    validate: Callable[[ProposerSpec], None]
    create: Callable[[ProposerSpec, DraftHost], Proposer]
    check: Callable[[ProposerSpec, TargetSizes], None] = no_check
    device_bytes: Callable[[ProposerSpec, Target, int], int] = no_memory
    check_members: Callable[[Sequence[str], Mapping[str, Capabilities]], None] = any_members
