"""How the API names a spec method: proposers, roles, models, policies and plain decoding.

Pure: no engine, no HTTP, no clock. The rules are those of "Choosing a proposer" in docs/api.md.
"""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from engine_adapter.policies.names import POLICY_NAMES
from engine_adapter.seam.text import truncate
from engine_adapter.seam.types import NONE, EngineInfo, ProposerInfo, ProposerState

PLAIN_SPELLINGS = frozenset({NONE, "disable"})
"""Names of plain decoding in the API, in lower case; `null` also means plain decoding."""


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
    def from_engine(
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


def find_proposer(request: MethodRequest, loaded: LoadedProposers) -> ProposerInfo | None:
    """The named proposer; `None` is plain decoding. Raises `SelectionError`.

    It does not read names of policies: see `policy_name`.
    """
    name = request.proposer
    if name is None or name.lower() in PLAIN_SPELLINGS:
        return None
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
    matches = [p for p in loaded.proposers if p.method == inner]
    return _named(inner, loaded) or _only(matches, f"method {inner!r}", request, loaded)


def _with_model(model: str, request: MethodRequest, loaded: LoadedProposers) -> ProposerInfo:
    path = posixpath.normpath(model)
    matches = [p for p in loaded.proposers if p.model and posixpath.normpath(p.model) == path]
    return _only(matches, f"model {_quoted(model)}", request, loaded)


def _only(
    matches: Sequence[ProposerInfo], what: str, request: MethodRequest, loaded: LoadedProposers
) -> ProposerInfo:
    if not matches:
        name = _quoted(request.proposer or "")
        raise _not_found(request, loaded, f"there is no proposer {name}")
    if len(matches) > 1:
        names = ", ".join(p.name for p in matches)
        raise SelectionError(
            f"{request.proposer_param}: {what} matches the proposers {names}; name one of them",
            request.proposer_param,
            "proposer_ambiguous",
        )
    return matches[0]


def _not_found(request: MethodRequest, loaded: LoadedProposers, reason: str) -> SelectionError:
    names = ", ".join([*loaded.names, NONE, *POLICY_NAMES])
    return SelectionError(
        f"{request.proposer_param}: {reason}; available: {names}",
        request.proposer_param,
        "proposer_not_found",
    )


def _quoted(text: str) -> str:
    return repr(truncate(text, 100))
