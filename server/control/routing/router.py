"""The routing rules in force: which rule decides for a request, and what their answers measure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from server.control.method_names import LoadedProposers, SelectionError
from server.control.routing.overlap import RunningOverlap
from server.control.routing.rules import Rule, Traits, outside, unreachable
from server.control.switching.selection import RoutedMethod, resolve
from server.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _State:
    """A rule with what is remembered of it.

    Attributes:
        answers: the overlap of the answers to requests that match its other conditions.
        skipped: its method could not be used when it last decided; that is logged once.
    """

    rule: Rule
    answers: RunningOverlap
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """One rule's part in a decision.

    Attributes:
        matches: all its conditions hold.
        why: the condition that does not hold, or why its method cannot be used.
        routed: its method, if it matches and the method can be used.
    """

    rule: str
    matches: bool
    why: str
    routed: RoutedMethod | None = None


@dataclass(frozen=True, slots=True)
class Routing:
    """What the rules say for one request.

    Attributes:
        method: what the first rule that matches gives; `None` if none does.
        skipped: rules that match before it, whose method cannot be used; with the reasons.
        measured: gets the overlap of the request's answers.
    """

    method: RoutedMethod | None = None
    skipped: tuple[Verdict, ...] = ()
    measured: tuple[RunningOverlap, ...] = field(default=(), compare=False)


NO_ROUTING = Routing()
"""No rule matches."""


class Router:
    """Routes requests by the rules. Lives on the event loop.

    Args:
        rules: the rules at start.
        loaded_proposers: returns the proposers that are loaded at the time of the call.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        loaded_proposers: Callable[[], LoadedProposers],
        metrics: Metrics,
    ) -> None:
        self._loaded_proposers = loaded_proposers
        self._metrics = metrics
        self._states: tuple[_State, ...] = ()
        self.replace(rules)
        for warning in self.warnings:
            log.warning("routing_rules", warning=warning)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules, in order."""
        return tuple(state.rule for state in self._states)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is likely a mistake in the rules."""
        return unreachable(self.rules)

    @property
    def uses_overlap(self) -> bool:
        """Whether a rule has a condition on the overlap, so that it must be measured."""
        return any(state.rule.match.overlap is not None for state in self._states)

    def measured_overlap(self, name: str) -> tuple[float | None, int]:
        """The mean overlap of a rule's answers, and the number of these answers."""
        for state in self._states:
            if state.rule.name == name:
                return state.answers.mean, len(state.answers)
        raise KeyError(name)

    def replace(self, rules: Sequence[Rule]) -> None:
        """Puts other rules in force. A rule that stays as it was keeps its measured overlap."""
        old_states = {(state.rule.name, state.rule.match): state for state in self._states}
        states = []
        for rule in rules:
            old_state = old_states.get((rule.name, rule.match))
            states.append(_State(rule, old_state.answers if old_state else RunningOverlap()))
        self._states = tuple(states)
        self._metrics.policies.declare_rules(rule.name for rule in rules)

    def route(self, traits: Traits) -> Routing:
        """What the rules say for a request. Changes nothing: `record` counts."""
        skipped_verdicts = []
        routed_method = None
        for state in self._states:
            verdict = self._verdict(state, traits)
            if verdict.routed is not None:
                routed_method = verdict.routed
                break
            if verdict.matches:
                skipped_verdicts.append(verdict)
        running_overlaps = tuple(
            state.answers
            for state in self._states
            if state.rule.match.overlap is not None and state.rule.match.mismatch(traits) is None
        )
        return Routing(routed_method, tuple(skipped_verdicts), running_overlaps)

    def verdicts(self, traits: Traits) -> tuple[Verdict, ...]:
        """What each rule says for a request."""
        return tuple(self._verdict(state, traits) for state in self._states)

    def record(self, routing: Routing, decided: str | None) -> None:
        """Counts an admitted request. `decided`: the rule whose method the request got."""
        for verdict in routing.skipped:
            self._metrics.policies.count_rule_skip(verdict.rule)
            self._note(verdict.rule, verdict.why)
        if decided is not None:
            self._metrics.policies.count_rule_match(decided)
            self._note(decided, None)

    def _note(self, name: str, fault: str | None) -> None:
        """Logs that a rule's method cannot be used, once until it can be used again."""
        for state in self._states:
            if state.rule.name == name:
                if fault is not None and not state.skipped:
                    log.warning("routing_rule_skipped", rule=name, reason=fault)
                state.skipped = fault is not None

    def _verdict(self, state: _State, traits: Traits) -> Verdict:
        rule = state.rule
        why = rule.match.mismatch(traits) or self._overlap_mismatch(state, traits)
        if why is not None:
            return Verdict(rule.name, False, why)
        loaded = self._loaded_proposers()
        try:
            method = resolve(rule.use, loaded)
        except SelectionError as error:
            return Verdict(rule.name, True, f"its method cannot be used: {error.message}")
        if method.proposer in loaded.quarantined:
            why = f"its method cannot be used: {method.proposer!r} is quarantined"
            return Verdict(rule.name, True, why)
        why = "every condition holds"
        return Verdict(rule.name, True, why, RoutedMethod(method, rule.name))

    def _overlap_mismatch(self, state: _State, traits: Traits) -> str | None:
        allowed_range = state.rule.match.overlap
        if allowed_range is None:
            return None
        value = state.answers.mean if traits.overlap is None else traits.overlap
        if value is None:
            return "overlap is not known yet: no answer to such a request has been measured"
        return None if allowed_range.holds(value) else outside("overlap", value, allowed_range)
