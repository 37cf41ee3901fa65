"""Which proposer a request or a switch asks for. Pure: no engine, no HTTP, no clock.

`select` decides for a request, `resolve` for a switch; both read names alike, by the rules of
"Choosing a proposer" in docs/api.md.
"""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine_adapter.types import NONE, PLAIN, EngineInfo, ProposerInfo, SpecDecodeParams, SpecMethod
from server.control.types import SelectedBy

PLAIN_SPELLINGS = frozenset({NONE, "disable"})
"""Names of plain decoding on the wire, in lower case; `null` is one too."""

PREDICTION = "prediction"
"""The method that drafts what a request predicts."""


class SelectionError(ValueError):
    """A choice that cannot be had.

    Attributes:
        message: what was wrong and what would be right.
        param: the field, as the client wrote it.
        code: a short constant for programs, or `None`.
    """

    def __init__(self, message: str, param: str, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


@dataclass(frozen=True, slots=True)
class MethodRequest:
    """What a client asked for, before it is looked up.

    Attributes:
        proposer: the name as written; `None` is the wire's null, plain decoding, if `is_named`.
        num_speculative_tokens: the most tokens to draft; `None` is the proposer's own k.
        is_named: a proposer was named, null included.
        proposer_param, k_param: how the client wrote the two fields, for error messages.
        has_prediction: the request has a prediction, which only some proposers can draft.
    """

    proposer: str | None = None
    num_speculative_tokens: int | None = None
    is_named: bool = False
    proposer_param: str = "spec_decode.proposer"
    k_param: str = "spec_decode.num_speculative_tokens"
    has_prediction: bool = False


@dataclass(frozen=True, slots=True)
class ActiveMethod:
    """What drafts for requests that do not choose for themselves.

    Attributes:
        name: how it is shown: the proposer's name or `none`.
        epoch: of the switch that made it active; 0 for the method at start.
        since: Unix time in seconds at which it became active.
    """

    spec_method: SpecMethod
    name: str
    epoch: int
    since: float


@dataclass(frozen=True, slots=True)
class LoadedProposers:
    """The loaded proposers and the two that have a role.

    Attributes:
        primary, backup: proposers' names, or `None` where no such role is configured.
        max_speculative_tokens: the draft capacity, at least every proposer's k.
    """

    proposers: tuple[ProposerInfo, ...]
    primary: str | None = None
    backup: str | None = None
    max_speculative_tokens: int = 0

    @classmethod
    def of(
        cls, info: EngineInfo, primary: str | None = None, backup: str | None = None
    ) -> "LoadedProposers":
        """The catalog of a started engine."""
        return cls(info.proposers, primary, backup, info.max_speculative_tokens)

    @property
    def names(self) -> tuple[str, ...]:
        """The proposers' names, in the order of the configuration."""
        return tuple(p.name for p in self.proposers)

    @property
    def quarantined(self) -> frozenset[str]:
        """The names of those that are not asked for drafts any more."""
        return frozenset(p.name for p in self.proposers if p.state == "quarantined")

    @property
    def largest_k(self) -> int:
        """The largest k of all proposers, 0 if there is none."""
        return max((p.num_speculative_tokens for p in self.proposers), default=0)


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for a request at its admission.

    Attributes:
        name: the proposer's name or `none`, for the response and the metrics.
    """

    params: SpecDecodeParams
    name: str
    selected_by: SelectedBy


def select(asked: MethodRequest, active: ActiveMethod, catalog: LoadedProposers) -> Choice:
    """Chooses for one request.

    A request that names a proposer, or its own k, or has a prediction, is pinned: no switch
    changes it. A k without a proposer caps the active method's. Raises `SelectionError`.
    """
    if asked.has_prediction:
        method, by = _for_prediction(asked, catalog), SelectedBy.REQUEST
    elif asked.is_named:
        method, by = resolve(asked, catalog), SelectedBy.REQUEST
    elif asked.num_speculative_tokens is not None:
        method, by = _capped(asked, active.spec_method, catalog), SelectedBy.REQUEST
    else:
        method, by = active.spec_method, SelectedBy.ACTIVE
    params = SpecDecodeParams(method, pinned=by is SelectedBy.REQUEST, switch_epoch=active.epoch)
    return Choice(params, method.proposer, by)


def resolve(asked: MethodRequest, catalog: LoadedProposers) -> SpecMethod:
    """Looks up a named method, its k included. Raises `SelectionError`."""
    proposer = _find(asked, catalog)
    if proposer is None:
        _check_k(asked, catalog.largest_k, "the largest of the loaded proposers")
        return PLAIN
    limit = proposer.num_speculative_tokens
    _check_k(asked, limit, f"that of proposer {proposer.name!r}")
    k = limit if asked.num_speculative_tokens is None else asked.num_speculative_tokens
    return SpecMethod(proposer.name, k) if k else PLAIN


def _for_prediction(asked: MethodRequest, catalog: LoadedProposers) -> SpecMethod:
    """What drafts a prediction: a proposer that can, the named one if one is named.

    A prediction is never dropped in silence: whatever else drafts would drop it.
    """
    able = [p.name for p in catalog.proposers if p.method == PREDICTION]
    if not able:
        message = f"prediction: no proposer of the method {PREDICTION} is loaded"
        raise SelectionError(message, "prediction", "proposer_not_found")
    chosen = resolve(asked if asked.is_named else replace(asked, proposer=able[0]), catalog)
    if chosen.proposer not in able:
        raise SelectionError(
            f"prediction is drafted by {' or '.join(able)}, so {asked.proposer_param} cannot name"
            f" another, nor {asked.k_param} be 0",
            "prediction",
        )
    return chosen


def _capped(asked: MethodRequest, active: SpecMethod, catalog: LoadedProposers) -> SpecMethod:
    """The active method with at most the k asked for.

    Checked against the largest k of all, so that whether a request is valid does not depend on
    which proposer is active when it comes.
    """
    _check_k(asked, catalog.largest_k, "the largest of the loaded proposers")
    k = min(asked.num_speculative_tokens or 0, active.num_speculative_tokens)
    return SpecMethod(active.proposer, k) if k else PLAIN


def _check_k(asked: MethodRequest, limit: int, whose: str) -> None:
    k = asked.num_speculative_tokens
    if k is None:
        return
    if k < 0:
        raise SelectionError(f"{asked.k_param} must be at least 0, got {k}", asked.k_param)
    if k > limit:
        raise SelectionError(
            f"{asked.k_param} is {k}, more than {limit}, {whose}",
            asked.k_param,
            "num_speculative_tokens_too_large",
        )


def _find(asked: MethodRequest, catalog: LoadedProposers) -> ProposerInfo | None:
    """The proposer that is named; `None` is plain decoding."""
    name = asked.proposer
    if name is None or name.lower() in PLAIN_SPELLINGS:
        return None
    if name == "auto":
        raise _not_found(asked, catalog, "no policy is configured, so 'auto' names nothing")
    if name in ("primary", "backup"):
        return _in_role(name, asked, catalog)
    if name.startswith("[") and name.endswith("]"):
        return _of_method(name[1:-1], asked, catalog)
    return _named(name, catalog) or _with_model(name, asked, catalog)


def _named(name: str, catalog: LoadedProposers) -> ProposerInfo | None:
    return next((p for p in catalog.proposers if p.name == name), None)


def _in_role(role: str, asked: MethodRequest, catalog: LoadedProposers) -> ProposerInfo:
    name = catalog.primary if role == "primary" else catalog.backup
    proposer = _named(name, catalog) if name is not None else None
    if proposer is None:
        raise _not_found(asked, catalog, f"no {role} proposer is configured")
    return proposer


def _of_method(inner: str, asked: MethodRequest, catalog: LoadedProposers) -> ProposerInfo:
    """`"[ngram]"`: the proposer of that name, else the only one of that method."""
    found = [p for p in catalog.proposers if p.method == inner]
    return _named(inner, catalog) or _only(found, f"method {inner!r}", asked, catalog)


def _with_model(model: str, asked: MethodRequest, catalog: LoadedProposers) -> ProposerInfo:
    wanted = posixpath.normpath(model)
    found = [p for p in catalog.proposers if p.model and posixpath.normpath(p.model) == wanted]
    return _only(found, f"model {_quoted(model)}", asked, catalog)


def _only(
    found: Sequence[ProposerInfo], what: str, asked: MethodRequest, catalog: LoadedProposers
) -> ProposerInfo:
    if not found:
        name = _quoted(asked.proposer or "")
        raise _not_found(asked, catalog, f"there is no proposer {name}")
    if len(found) > 1:
        names = ", ".join(p.name for p in found)
        raise SelectionError(
            f"{asked.proposer_param}: {what} is shared by the proposers {names}; name one of them",
            asked.proposer_param,
            "proposer_ambiguous",
        )
    return found[0]


def _not_found(asked: MethodRequest, catalog: LoadedProposers, reason: str) -> SelectionError:
    known = ", ".join([*catalog.names, NONE])
    return SelectionError(
        f"{asked.proposer_param}: {reason}; there are {known}",
        asked.proposer_param,
        "proposer_not_found",
    )


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:100]}…")
