"""The metrics of policies, and the decisions of the last minute."""

import math
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from engine_adapter.seam.counts import PolicyStep
from engine_adapter.seam.types import PolicyInfo
from server.telemetry.metrics import Metrics
from server.telemetry.policy_metrics import RollingDecisions


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry)


def test_decisions_and_the_guard_are_shown(registry: CollectorRegistry, metrics: Metrics) -> None:
    metrics.policies.on_step(
        PolicyStep({"auto": {"ngram": 3, "none": 1}}, 0.1, 0.12, {"auto": True})
    )
    metrics.policies.on_step(PolicyStep({"auto": {"ngram": 2}}, None, None, {"auto": False}))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    decisions = "specgate_policy_decisions_total"
    assert value(decisions, policy="auto", proposer="ngram") == 5
    assert value(decisions, policy="auto", proposer="none") == 1
    assert value("specgate_policy_suspended", policy="auto") == 0
    assert value("specgate_policy_suspended", policy="load") == 0
    assert value("specgate_policy_step_seconds_total", value="predicted") == 0.1
    assert value("specgate_policy_step_seconds_total", value="measured") == 0.12
    assert value("specgate_policy_step_error_seconds_sum") == pytest.approx(0.02)
    assert value("specgate_policy_step_error_seconds_count") == 1
    activity = metrics.policies.activity("auto")
    assert (activity.decisions, activity.suspended) == ({"ngram": 5, "none": 1}, False)
    assert metrics.policies.activity("load").decisions == {}


class Policies:
    """An engine whose policies have these states."""

    def __init__(self, **states: Any) -> None:
        self.states = states

    @property
    def policies(self) -> tuple[PolicyInfo, ...]:
        return tuple(PolicyInfo(name, {}, state) for name, state in self.states.items())


def test_the_expected_gain_is_read_at_each_scrape(
    registry: CollectorRegistry, metrics: Metrics
) -> None:
    engine = Policies(auto={"expected_gain": 1.5}, load={"light": True})
    metrics.policies.watch(engine)

    def gain(policy: str) -> float | None:
        return registry.get_sample_value("specgate_policy_expected_gain", {"policy": policy})

    assert (gain("auto"), gain("load")) == (1.5, None)
    engine.states["auto"] = {"engines": {"0": {"expected_gain": 2.0}, "1": {"expected_gain": 3}}}
    assert gain("auto") == 2.5
    engine.states = {}
    assert math.isnan(gain("auto") or 0)
    assert math.isnan(gain("per_request") or 0)


@pytest.mark.parametrize(
    ("predicted", "measured"),
    [(math.nan, 0.1), (0.1, math.nan), (math.inf, 0.1), (0.1, -5.0), (None, 0.1), (0.1, None)],
)
def test_a_time_that_no_clock_can_give_is_in_no_metric(
    registry: CollectorRegistry,
    metrics: Metrics,
    predicted: float | None,
    measured: float | None,
) -> None:
    metrics.policies.on_step(PolicyStep({}, predicted, measured))
    assert registry.get_sample_value("specgate_policy_step_error_seconds_count") == 0
    for value in ("predicted", "measured"):
        labels = {"value": value}
        assert registry.get_sample_value("specgate_policy_step_seconds_total", labels) == 0


def test_decisions_are_forgotten_after_the_window() -> None:
    now = 100.0
    rolling = RollingDecisions(window_s=10, clock=lambda: now)
    rolling.add({"ngram": 2})
    now = 105.0
    rolling.add({"ngram": 1, "none": 4})
    assert rolling.sums() == {"ngram": 3, "none": 4}
    now = 110.0
    assert rolling.sums() == {"ngram": 1, "none": 4}
    now = 115.0
    assert rolling.sums() == {}
