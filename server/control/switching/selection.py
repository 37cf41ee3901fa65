"""Which proposer or policy a request or a switch gets. Pure: no engine, no HTTP, no clock.

`select` is for requests, `resolve` for switches and routing rules; both read names by the rules of
"Choosing a proposer" in docs/api.md.
"""

from dataclasses import dataclass, replace

from engine_adapter.policies.names import policy_name
from engine_adapter.seam.types import PLAIN, SpecDecodeParams, SpecMethod
from server.control.method_names import (
    LoadedProposers,
    MethodRequest,
    SelectionError,
    find_proposer,
)
from server.control.types import NO_FLEET, FleetRank, SelectedBy

PREDICTION = "prediction"
"""The method that drafts the prediction of a request."""

_LARGEST = "the largest k of the loaded proposers"


@dataclass(frozen=True, slots=True)
class ActiveMethod:
    """The spec method of requests that neither select one nor match a routing rule.

    Attributes:
        name: the name of the proposer or policy, or `none`, for responses and metrics.
        epoch: the epoch of the switch that made it active; 0 for the method at start.
        since: Unix time in seconds at which it became active.
        fleet: the rank of the fleet's state that the server has taken last.
    """

    spec_method: SpecMethod
    name: str
    epoch: int
    since: float
    fleet: FleetRank = NO_FLEET


@dataclass(frozen=True, slots=True)
class RoutedMethod:
    """The spec method that a routing rule gives to a request.

    Attributes:
        rule: the rule's name.
    """

    spec_method: SpecMethod
    rule: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The spec method that a request gets at its admission.

    Attributes:
        name: the name of the proposer or policy, or `none`, for the response and the metrics.
        rule: the routing rule that decided, or whose method the request caps.
    """

    params: SpecDecodeParams
    name: str
    selected_by: SelectedBy
    rule: str | None = None

    @property
    def k(self) -> int:
        """The maximum draft length; 0 for plain decoding."""
        return self.params.spec_method.num_speculative_tokens


def decides_itself(request: MethodRequest) -> bool:
    """Whether the request names its method or has a prediction: no routing rule is asked."""
    return request.is_named or request.has_prediction


def select(
    request: MethodRequest,
    active: ActiveMethod,
    loaded: LoadedProposers,
    routed: RoutedMethod | None = None,
) -> Selection:
    """Selects the spec method of one request: its own, else the routing rule's, else the active.

    A request that names a method or a k, has a prediction or matches a rule is pinned: no switch
    changes its method. A k without a proposer caps the method that the request would get
    otherwise. Raises `SelectionError`.
    """
    default_method = active.spec_method if routed is None else routed.spec_method
    selected_by = SelectedBy.REQUEST
    if request.has_prediction:
        spec_method = _for_prediction(request, loaded)
    elif request.is_named:
        spec_method = resolve(request, loaded)
    elif request.num_speculative_tokens is not None:
        spec_method = _capped(request, default_method, loaded)
    else:
        spec_method = default_method
        selected_by = SelectedBy.ACTIVE if routed is None else SelectedBy.RULE
    rule = None if routed is None or decides_itself(request) else routed.rule
    pinned = selected_by is not SelectedBy.ACTIVE
    params = SpecDecodeParams(spec_method, pinned=pinned, switch_epoch=active.epoch)
    return Selection(params, spec_method.proposer, selected_by, rule)


def resolve(request: MethodRequest, loaded: LoadedProposers) -> SpecMethod:
    """Looks up the named spec method and its k. Raises `SelectionError`.

    The k of a policy is the most that it may choose. Without proposers that is the draft
    capacity, so that the policy can use a proposer that is loaded later.
    """
    policy = policy_name(request.proposer or "")
    if policy is not None:
        _check_k(request, loaded.largest_k, _LARGEST)
        limit = loaded.largest_k or loaded.max_speculative_tokens
        k = limit if request.num_speculative_tokens is None else request.num_speculative_tokens
        return PLAIN if request.num_speculative_tokens == 0 else SpecMethod(policy, k)
    proposer = find_proposer(request, loaded)
    if proposer is None:
        _check_k(request, loaded.largest_k, _LARGEST)
        return PLAIN
    limit = proposer.num_speculative_tokens
    _check_k(request, limit, f"the k of proposer {proposer.name!r}")
    k = limit if request.num_speculative_tokens is None else request.num_speculative_tokens
    return SpecMethod(proposer.name, k) if k else PLAIN


def absence(method: SpecMethod, loaded: LoadedProposers) -> SelectionError | None:
    """The error of a method whose proposer has been unloaded since it was resolved."""
    name, k = method.proposer, method.num_speculative_tokens
    if method == PLAIN or policy_name(name) is not None:
        return None
    if any(p.name == name and k <= p.num_speculative_tokens for p in loaded.proposers):
        return None
    message = f"proposer {name!r} was unloaded before the switch to it took place"
    return SelectionError(message, "speculative_model", "proposer_not_found")


def _for_prediction(request: MethodRequest, loaded: LoadedProposers) -> SpecMethod:
    """The spec method of a request with a prediction: a proposer that drafts predictions.

    A policy leaves the choice to Specgate, which is that proposer. Any other proposer would drop
    the prediction silently, so it is refused.
    """
    drafters = [p.name for p in loaded.proposers if p.method == PREDICTION]
    if not drafters:
        message = f"prediction: no proposer of the method {PREDICTION} is loaded"
        raise SelectionError(message, "prediction", "proposer_not_found")
    names_proposer = request.is_named and policy_name(request.proposer or "") is None
    method = resolve(request if names_proposer else replace(request, proposer=drafters[0]), loaded)
    if method.proposer not in drafters:
        raise SelectionError(
            f"prediction is drafted by {' or '.join(drafters)}, so {request.proposer_param} cannot "
            f"name another proposer, and {request.k_param} cannot be 0",
            "prediction",
        )
    return method


def _capped(request: MethodRequest, method: SpecMethod, loaded: LoadedProposers) -> SpecMethod:
    """`method` with at most the requested k.

    The limit is the largest k of all proposers, so that the method does not decide whether a
    request is valid.
    """
    _check_k(request, loaded.largest_k, _LARGEST)
    k = min(request.num_speculative_tokens or 0, method.num_speculative_tokens)
    return SpecMethod(method.proposer, k) if k else PLAIN


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
