"""The metrics of policies and routing rules, and what each policy chose in the last minute."""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from engine_adapter.policies.names import AUTO, PER_REQUEST, POLICY_NAMES
from engine_adapter.seam.counts import PolicyStep
from engine_adapter.seam.types import NONE, PolicyInfo
from server.telemetry.metric_maker import MetricMaker
from server.telemetry.rolling_stats import WINDOW_S

_ERROR_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0,
)  # fmt: skip


_EXPECTING = (AUTO, PER_REQUEST)
"""The policies that choose by an expected gain."""


class WatchedPolicies(Protocol):
    """An engine, as the gauges of its policies read it."""

    @property
    def policies(self) -> tuple[PolicyInfo, ...]:
        """See `Engine.policies`."""
        ...


class PolicyMetrics:
    """The metrics with a label `policy` or `rule`, on one registry."""

    def __init__(self, make: MetricMaker) -> None:
        self._decisions = make.counter(
            "specgate_policy_decisions", "Rows planned by a policy", "policy", "proposer"
        )
        self._seconds = make.counter(
            "specgate_policy_step_seconds", "Step time of steps with a prediction", "value"
        )
        for value in ("predicted", "measured"):
            self._seconds.labels(value)
        self._error = make.histogram(
            "specgate_policy_step_error_seconds",
            "Absolute difference of predicted and measured step time",
            _ERROR_BUCKETS,
        )
        self._suspended = make.gauge(
            "specgate_policy_suspended", "1 while the guard holds the policy", "policy"
        )
        self._gain = make.gauge(
            "specgate_policy_expected_gain",
            "Tokens per second that the policy expects, as a multiple of plain decoding's",
            "policy",
        )
        for name in POLICY_NAMES:
            self._suspended.labels(name)
            self._decisions.labels(name, NONE)
        self._matches = make.counter(
            "specgate_routing_rule_matches", "Requests whose method a rule decided", "rule"
        )
        self._skips = make.counter(
            "specgate_routing_rule_skips", "Requests whose rule had no usable method", "rule"
        )
        self._rolling: dict[str, RollingDecisions] = {
            name: RollingDecisions() for name in POLICY_NAMES
        }
        self._suspensions: dict[str, bool] = {}

    def watch(self, engine: WatchedPolicies) -> None:
        """Makes the gauges of expected gains show these policies, read at each scrape.

        One that has planned nothing yet is not a number.
        """
        for name in _EXPECTING:
            self._gain.labels(name).set_function(partial(_gain_of, engine, name))

    def declare_rules(self, names: Iterable[str]) -> None:
        """Lets the series of the named rules exist at 0."""
        for name in names:
            self._matches.labels(name)
            self._skips.labels(name)

    def on_step(self, step: PolicyStep) -> None:
        """Counts the policies' part of one engine step."""
        for policy, rows in step.decisions.items():
            self._rolling.setdefault(policy, RollingDecisions()).add(rows)
            for proposer, count in rows.items():
                self._decisions.labels(policy, proposer).inc(count)
        for policy, is_suspended in step.suspended.items():
            self._suspensions[policy] = is_suspended
            self._suspended.labels(policy).set(int(is_suspended))
        predicted, measured = step.predicted_s, step.measured_s
        # A clock that jumps must not put a NaN, or a negative increment, into a counter.
        if predicted is None or measured is None:
            return
        if math.isfinite(predicted) and math.isfinite(measured) and min(predicted, measured) >= 0:
            self._seconds.labels("predicted").inc(predicted)
            self._seconds.labels("measured").inc(measured)
            self._error.observe(abs(predicted - measured))

    def count_rule_match(self, rule: str) -> None:
        """Counts an admitted request whose method the rule decided."""
        self._matches.labels(rule).inc()

    def count_rule_skip(self, rule: str) -> None:
        """Counts an admitted request that the rule matched with a method that cannot be used."""
        self._skips.labels(rule).inc()

    def activity(self, policy: str) -> "PolicyActivity":
        """What a policy did in the last minute."""
        rolling_decisions = self._rolling.get(policy)
        return PolicyActivity(
            dict(rolling_decisions.sums()) if rolling_decisions else {},
            self._suspensions.get(policy, False),
        )


def _gain_of(engine: WatchedPolicies, name: str) -> float:
    state = next((policy.state for policy in engine.policies if policy.name == name), {})
    gain = _expected_gain(state)
    return math.nan if gain is None else gain


def _expected_gain(state: Mapping[str, Any]) -> float | None:
    """That of a policy's state; of several engines the mean. `None` if it expects none."""
    gains = [
        of_engine["expected_gain"]
        for of_engine in state.get("engines", {"": state}).values()
        if "expected_gain" in of_engine
    ]
    return sum(gains) / len(gains) if gains else None


@dataclass(frozen=True, slots=True)
class PolicyActivity:
    """What a policy did lately.

    Attributes:
        decisions: proposer, or `none` -> rows that it planned so in the last minute.
        suspended: its guard holds it at plain decoding.
    """

    decisions: dict[str, int]
    suspended: bool


class RollingDecisions:
    """A policy's decisions over the last `window_s` seconds, in one bucket per second."""

    def __init__(
        self, window_s: int = WINDOW_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._window_s = window_s
        self._clock = clock
        self._buckets: deque[tuple[int, Counter[str]]] = deque()

    def add(self, rows: Mapping[str, int]) -> None:
        """Adds one step's rows by proposer to the current second."""
        now_s = int(self._clock())
        if not self._buckets or self._buckets[-1][0] != now_s:
            self._forget(now_s)
            self._buckets.append((now_s, Counter()))
        self._buckets[-1][1].update(rows)

    def sums(self) -> Counter[str]:
        """Proposer -> rows in the window that ends now."""
        self._forget(int(self._clock()))
        return sum((rows for _, rows in self._buckets), Counter())

    def _forget(self, now_s: int) -> None:
        while self._buckets and self._buckets[0][0] <= now_s - self._window_s:
            self._buckets.popleft()
