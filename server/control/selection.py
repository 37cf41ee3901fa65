"""Which proposer a request or a switch gets. Pure: no engine, no HTTP, no clock.

`select` is for requests, `resolve` for switches; both read names by the rules of "Choosing a
proposer" in docs/api.md.
"""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine_adapter.types import (
    NONE,
    PLAIN,
    EngineInfo,
    ProposerInfo,
    ProposerState,
    SpecDecodeParams,
    SpecMethod,
)
from server.control.types import SelectedBy
from server.text import cut

PLAIN_SPELLINGS = frozenset({NONE, "disable"})
"""Names of plain decoding in the API, in lower case; `null` also means plain decoding."""

PREDICTION = "prediction"
"""The method that drafts the prediction of a request."""


class SelectionError(ValueError):
    """A proposer or k that cannot be selected.

    Attributes:
        message: the reason, and the valid values.
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
    """The proposer and k that a client requests, not looked up yet.

    Attributes:
        proposer: the name as written; `None` with `is_named` is JSON's null, plain decoding.
        num_speculative_tokens: the maximum draft length; `None` is the proposer's own k.
        is_named: the client named a proposer, or null.
        proposer_param, k_param: the names of the two fields as the client wrote them, for
            error messages.
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
    """The spec method of requests that do not select one.

    Attributes:
        name: the proposer's name or `none`, for responses and metrics.
        epoch: the epoch of the switch that made it active; 0 for the method at start.
        since: Unix time in seconds at which it became active.
    """

    spec_method: SpecMethod
    name: str
    epoch: int
    since: float


@dataclass(frozen=True, slots=True)
class LoadedProposers:
    """The loaded proposers, and the two roles.

    Attributes:
        primary, backup: names of proposers, or `None` if the role is not configured.
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
        """The proposers of a started engine."""
        return cls(info.proposers, primary, backup, info.max_speculative_tokens)

    @property
    def names(self) -> tuple[str, ...]:
        """The proposers' names, in the order of the configuration."""
        return tuple(p.name for p in self.proposers)

    @property
    def quarantined(self) -> frozenset[str]:
        """The names of the proposers that faults excluded from drafting."""
        return frozenset(p.name for p in self.proposers if p.state == ProposerState.QUARANTINED)

    @property
    def largest_k(self) -> int:
        """The largest k of all proposers, 0 without proposers."""
        return max((p.num_speculative_tokens for p in self.proposers), default=0)


@dataclass(frozen=True, slots=True)
class Selection:
    """The proposer that a request gets at its admission.

    Attributes:
        name: the proposer's name or `none`, for the response and the metrics.
    """

    params: SpecDecodeParams
    name: str
    selected_by: SelectedBy

    @property
    def k(self) -> int:
        """The maximum draft length; 0 for plain decoding."""
        return self.params.spec_method.num_speculative_tokens


def select(request: MethodRequest, active: ActiveMethod, loaded: LoadedProposers) -> Selection:
    """Selects the spec method of one request.

    A request that names a proposer or a k, or has a prediction, is pinned: no switch changes
    its method. A k without a proposer caps the active method's k. Raises `SelectionError`.
    """
    if request.has_prediction:
        spec_method, by = _for_prediction(request, loaded), SelectedBy.REQUEST
    elif request.is_named:
        spec_method, by = resolve(request, loaded), SelectedBy.REQUEST
    elif request.num_speculative_tokens is not None:
        spec_method, by = _capped(request, active.spec_method, loaded), SelectedBy.REQUEST
    else:
        spec_method, by = active.spec_method, SelectedBy.ACTIVE
    params = SpecDecodeParams(
        spec_method, pinned=by is SelectedBy.REQUEST, switch_epoch=active.epoch
    )
    return Selection(params, spec_method.proposer, by)


def resolve(request: MethodRequest, loaded: LoadedProposers) -> SpecMethod:
    """Looks up the named spec method and its k. Raises `SelectionError`."""
    proposer = _find(request, loaded)
    if proposer is None:
        _check_k(request, loaded.largest_k, "the largest k of the loaded proposers")
        return PLAIN
    limit = proposer.num_speculative_tokens
    _check_k(request, limit, f"the k of proposer {proposer.name!r}")
    k = limit if request.num_speculative_tokens is None else request.num_speculative_tokens
    return SpecMethod(proposer.name, k) if k else PLAIN


def _for_prediction(request: MethodRequest, loaded: LoadedProposers) -> SpecMethod:
    """The spec method of a request with a prediction: the named proposer if it drafts predictions.

    Any other proposer would drop the prediction silently, so it is refused.
    """
    able = [p.name for p in loaded.proposers if p.method == PREDICTION]
    if not able:
        message = f"prediction: no proposer of the method {PREDICTION} is loaded"
        raise SelectionError(message, "prediction", "proposer_not_found")
    chosen = resolve(request if request.is_named else replace(request, proposer=able[0]), loaded)
    if chosen.proposer not in able:
        raise SelectionError(
            f"prediction is drafted by {' or '.join(able)}, so {request.proposer_param} cannot name"
            f" another proposer, and {request.k_param} cannot be 0",
            "prediction",
        )
    return chosen


def _capped(request: MethodRequest, active: SpecMethod, loaded: LoadedProposers) -> SpecMethod:
    """The active method with at most the requested k.

    The limit is the largest k of all proposers, so that the active method does not decide
    whether a request is valid.
    """
    _check_k(request, loaded.largest_k, "the largest k of the loaded proposers")
    k = min(request.num_speculative_tokens or 0, active.num_speculative_tokens)
    return SpecMethod(active.proposer, k) if k else PLAIN


def _check_k(request: MethodRequest, limit: int, limit_of: str) -> None:
    k = request.num_speculative_tokens
    if k is None:
        return
    if k < 0:
        raise SelectionError(f"{request.k_param} must be at least 0, got {k}", request.k_param)
    if k > limit:
        raise SelectionError(
            f"{request.k_param} is {k}, more than {limit}, {limit_of}",
            request.k_param,
            "num_speculative_tokens_too_large",
        )


def _find(request: MethodRequest, loaded: LoadedProposers) -> ProposerInfo | None:
    """The named proposer; `None` is plain decoding."""
    name = request.proposer
    if name is None or name.lower() in PLAIN_SPELLINGS:
        return None
    if name == "auto":
        raise _not_found(request, loaded, "no policy is configured, which 'auto' requires")
    if name in ("primary", "backup"):
        return _in_role(name, request, loaded)
    if name.startswith("[") and name.endswith("]"):
        return _of_method(name[1:-1], request, loaded)
    return _named(name, loaded) or _with_model(name, request, loaded)


def _named(name: str, loaded: LoadedProposers) -> ProposerInfo | None:
    return next((p for p in loaded.proposers if p.name == name), None)


def _in_role(role: str, request: MethodRequest, loaded: LoadedProposers) -> ProposerInfo:
    name = loaded.primary if role == "primary" else loaded.backup
    proposer = _named(name, loaded) if name is not None else None
    if proposer is None:
        raise _not_found(request, loaded, f"no {role} proposer is configured")
    return proposer


def _of_method(inner: str, request: MethodRequest, loaded: LoadedProposers) -> ProposerInfo:
    """`"[ngram]"`: the proposer of that name, else the only proposer of that method."""
    found = [p for p in loaded.proposers if p.method == inner]
    return _named(inner, loaded) or _only(found, f"method {inner!r}", request, loaded)


def _with_model(model: str, request: MethodRequest, loaded: LoadedProposers) -> ProposerInfo:
    wanted = posixpath.normpath(model)
    found = [p for p in loaded.proposers if p.model and posixpath.normpath(p.model) == wanted]
    return _only(found, f"model {_quoted(model)}", request, loaded)


def _only(
    found: Sequence[ProposerInfo], what: str, request: MethodRequest, loaded: LoadedProposers
) -> ProposerInfo:
    if not found:
        name = _quoted(request.proposer or "")
        raise _not_found(request, loaded, f"there is no proposer {name}")
    if len(found) > 1:
        names = ", ".join(p.name for p in found)
        raise SelectionError(
            f"{request.proposer_param}: {what} matches the proposers {names}; name one of them",
            request.proposer_param,
            "proposer_ambiguous",
        )
    return found[0]


def _not_found(request: MethodRequest, loaded: LoadedProposers, reason: str) -> SelectionError:
    known = ", ".join([*loaded.names, NONE])
    return SelectionError(
        f"{request.proposer_param}: {reason}; available: {known}",
        request.proposer_param,
        "proposer_not_found",
    )


def _quoted(text: str) -> str:
    return repr(cut(text, 100))
