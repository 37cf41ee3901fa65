"""All policies: how their parameters are read, and how they are made."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from engine_adapter.policies.contract import StepPlan, StepResult, StepView
from engine_adapter.policies.goodput import GoodputParameters, GoodputPolicy
from engine_adapter.policies.load import LoadPolicy, load_json, read_load
from engine_adapter.policies.measurements import Measurements
from engine_adapter.policies.names import (
    AUTO,
    LATENCY_FIRST,
    LOAD,
    PER_REQUEST,
    POLICY_NAMES,
    QUALITY_FIRST,
)
from engine_adapter.policies.parameters import PolicyError, read_parameters
from engine_adapter.policies.per_request import PerRequestPolicy
from engine_adapter.policies.ranking import (
    LatencyFirstPolicy,
    QualityFirstPolicy,
    RankingParameters,
)


class PlanningPolicy(Protocol):
    """A policy of the catalog."""

    @property
    def suspended(self) -> bool:
        """Whether its guard holds it at plain decoding."""
        ...

    def plan(self, view: StepView) -> StepPlan:
        """See `Policy.plan`."""
        ...

    def observe(self, step: StepResult) -> None:
        """Takes a step without prefill."""
        ...

    def state(self) -> dict[str, Any]:
        """What it does at present: plain JSON, for people."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyKind:
    """A policy of the catalog.

    Attributes:
        parse: the parameters of a JSON object, given the proposers' k and the primary proposer.
            Raises `PolicyError`.
        create: the policy with these parameters.
        to_json: the parameters as a JSON object that `parse` takes.
    """

    parse: Callable[[Mapping[str, Any], Mapping[str, int], str | None], Any]
    create: Callable[[Any, Measurements], PlanningPolicy]
    to_json: Callable[[Any], dict[str, Any]]


def _numbers(kind: type) -> Callable[[Mapping[str, Any], Mapping[str, int], str | None], Any]:
    return lambda raw, known_ks, primary: read_parameters(kind, raw)


POLICIES: Mapping[str, PolicyKind] = {
    AUTO: PolicyKind(_numbers(GoodputParameters), GoodputPolicy, asdict),
    LOAD: PolicyKind(read_load, lambda parameters, _: LoadPolicy(parameters), load_json),
    QUALITY_FIRST: PolicyKind(_numbers(RankingParameters), QualityFirstPolicy, asdict),
    LATENCY_FIRST: PolicyKind(_numbers(RankingParameters), LatencyFirstPolicy, asdict),
    PER_REQUEST: PolicyKind(_numbers(GoodputParameters), PerRequestPolicy, asdict),
}
"""Every policy by name."""

assert set(POLICIES) == set(POLICY_NAMES)


def read_policy(
    name: str, raw: Mapping[str, Any], known_ks: Mapping[str, int], primary: str | None
) -> Any:
    """The parameters of the policy `name`.

    Args:
        raw: a JSON object; what is left out has its default.
        known_ks: the k of every loaded proposer.
        primary: the primary proposer, if there is one; ignored if it is not loaded.

    Raises:
        PolicyError: the policy or a parameter is unknown, or a value cannot work.
    """
    if name not in POLICIES:
        there_are = ", ".join(POLICY_NAMES)
        raise PolicyError("policy", f"{name[:80]!r} is unknown; there are {there_are}")
    return POLICIES[name].parse(raw, known_ks, primary if primary in known_ks else None)


def to_json(name: str, parameters: Any) -> dict[str, Any]:
    """The parameters as a JSON object that `read_policy` takes."""
    return POLICIES[name].to_json(parameters)
