"""Every Prometheus metric of the gateway, and the PromQL queries to read it.

Those of policies and routing rules are in `server.telemetry.policy_metrics`, those of HTTP requests
in `server.telemetry.http_metrics`, those of API keys in `server.telemetry.usage_metrics`, those of
the queue and of limits in `server.telemetry.admission_metrics`, those of connections in
`server.telemetry.connection_metrics`, those of keys, audit and log in
`server.telemetry.file_metrics`, those of stored responses in `server.telemetry.response_metrics`,
those of files and batches in `server.telemetry.batch_metrics`, those of pictures in
`server.telemetry.media_metrics`.

Counters, gauges and histograms; PromQL computes ratios. Label values come from the known proposers,
modes and routes, never from a request. The `vllm:` metrics are the engine's.

Acceptance rate of each proposer:
    sum by (proposer) (rate(specgate_spec_decode_accepted_tokens_total[5m]))
      / sum by (proposer) (rate(specgate_spec_decode_draft_tokens_total[5m]))
Acceptance rate by position (position 0 is the first drafted token):
    sum by (proposer, position) (
        rate(specgate_spec_decode_accepted_tokens_per_position_total[5m]))
      / on (proposer) group_left sum by (proposer) (rate(specgate_spec_decode_drafts_total[5m]))
Mean acceptance length, the bonus token included:
    1 + sum by (proposer) (rate(specgate_spec_decode_accepted_tokens_total[5m]))
      / sum by (proposer) (rate(specgate_spec_decode_drafts_total[5m]))
System efficiency (share of the tokens that perfect drafts would have emitted):
    (sum by (proposer) (rate(specgate_spec_decode_accepted_tokens_total[5m]))
        + sum by (proposer) (rate(specgate_spec_decode_drafts_total[5m])))
      / (sum by (proposer) (rate(specgate_spec_decode_draft_tokens_total[5m]))
        + sum by (proposer) (rate(specgate_spec_decode_drafts_total[5m])))
Tokens emitted per second, by the proposer that drafted (`none`: plain decoding):
    sum by (proposer) (rate(specgate_spec_decode_emitted_tokens_total[5m]))
Drafting time per drafted token, in seconds:
    sum by (proposer) (rate(specgate_proposer_draft_seconds_sum[5m]))
      / sum by (proposer) (rate(specgate_spec_decode_draft_tokens_total[5m]))
Positions caught up per second after switches and prefix hits:
    sum by (proposer) (rate(specgate_proposer_catchup_tokens_total[5m]))
Requests by proposer, and by what selected it (`request`, `rule` or `active`):
    sum by (proposer, selected_by) (rate(specgate_requests_total[5m]))
Proposers that fail, and those that are not tried any more:
    sum by (proposer) (increase(specgate_proposer_errors_total[5m])) > 0
    specgate_proposer_quarantined == 1
Active method:
    specgate_spec_method_info
Fleets whose servers differ:
    max by (job) (specgate_fleet_generation) != min by (job) (specgate_fleet_generation)
Switches that did not happen:
    increase(specgate_spec_method_switches_total{outcome!="switched"}[1h])
Slowest switches:
    histogram_quantile(0.99, sum by (mode, le) (
        rate(specgate_spec_method_switch_seconds_bucket[1h])))
Engine processes that were replaced, and replacements that failed:
    increase(specgate_engine_restarts_total[1h])
Servers whose engine does not serve, and those that need a restart:
    specgate_engine_up == 0
    specgate_engine_given_up == 1
Median step time by kind:
    histogram_quantile(0.5, sum by (kind, le) (rate(specgate_step_seconds_bucket[5m])))
Shares of the rows by the proposer that a policy chose:
    sum by (policy, proposer) (rate(specgate_policy_decisions_total[5m]))
      / on (policy) group_left sum by (policy) (rate(specgate_policy_decisions_total[5m]))
Predicted against measured step time (1 is a prediction without bias):
    sum(rate(specgate_policy_step_seconds_total{value="predicted"}[5m]))
      / sum(rate(specgate_policy_step_seconds_total{value="measured"}[5m]))
Mean absolute error of the prediction, relative to the step:
    sum(rate(specgate_policy_step_error_seconds_sum[5m]))
      / sum(rate(specgate_policy_step_seconds_total{value="measured"}[5m]))
Policies whose guard holds them at plain decoding, and those that expect nothing of drafts:
    specgate_policy_suspended == 1
    specgate_policy_expected_gain <= 1
Choices that a parser of the model's output could not read to their end:
    sum by (reason) (increase(specgate_parser_failures_total[1h])) > 0
Requests by routing rule, and rules whose method cannot be used:
    sum by (rule) (rate(specgate_routing_rule_matches_total[5m]))
    sum by (rule) (increase(specgate_routing_rule_skips_total[5m])) > 0
"""

from collections.abc import Collection, Iterable
from enum import StrEnum

from prometheus_client import CollectorRegistry

from engine_adapter.policies.names import POLICY_NAMES
from engine_adapter.seam.counts import NO_GRAMMARS, ProposerCounts, StepKind, StepReport
from engine_adapter.seam.types import NONE
from server.control.types import SelectedBy, SwitchMode, SwitchOutcome
from server.telemetry.admission_metrics import AdmissionMetrics
from server.telemetry.batch_metrics import BatchMetrics
from server.telemetry.connection_metrics import ConnectionMetrics
from server.telemetry.file_metrics import FileMetrics
from server.telemetry.http_metrics import HttpMetrics
from server.telemetry.media_metrics import MediaMetrics
from server.telemetry.metric_maker import MetricMaker
from server.telemetry.policy_metrics import PolicyMetrics
from server.telemetry.response_metrics import ResponseMetrics
from server.telemetry.rolling_stats import RollingCounts, RollingStats
from server.telemetry.usage_metrics import UsageMetrics

_STEP_BUCKETS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip
_SWITCH_BUCKETS = (*_STEP_BUCKETS, 5.0, 10.0, 30.0, 60.0, 120.0)


class RestartOutcome(StrEnum):
    """The end of an attempt to replace a dead engine process."""

    RESTARTED = "restarted"
    FAILED = "failed"


class _ProposerMetrics:
    """The metrics with a label `proposer`."""

    def __init__(self, make: MetricMaker) -> None:
        prefix = "specgate_spec_decode"
        self.drafts = make.counter(f"{prefix}_drafts", "Verification steps with drafts", "proposer")
        self.drafted = make.counter(f"{prefix}_draft_tokens", "Draft tokens verified", "proposer")
        self.accepted = make.counter(f"{prefix}_accepted_tokens", "Draft tokens kept", "proposer")
        self.accepted_per_position = make.counter(
            f"{prefix}_accepted_tokens_per_position",
            "Draft tokens kept, by their position in the draft from 0",
            "proposer",
            "position",
        )
        self.emitted = make.counter(
            f"{prefix}_emitted_tokens", "Tokens emitted, by what drafted for them", "proposer"
        )
        self.draft_seconds = make.histogram(
            "specgate_proposer_draft_seconds", "Drafting time per step", _STEP_BUCKETS, "proposer"
        )
        self.catchup = make.counter(
            "specgate_proposer_catchup_tokens", "Positions read to remove a lag", "proposer"
        )
        self.errors = make.counter(
            "specgate_proposer_errors", "Steps in which a proposer failed", "proposer"
        )
        self.quarantined = make.gauge(
            "specgate_proposer_quarantined", "1 while a proposer is not tried any more", "proposer"
        )
        self.requests = make.counter(
            "specgate_requests", "Requests admitted", "proposer", "selected_by"
        )

    def declare(self, name: str) -> None:
        """Lets every series of a proposer exist at 0; plain decoding drafts nothing."""
        self.emitted.labels(name)
        self.declare_requests(name)
        if name != NONE:
            for metric in (self.drafts, self.drafted, self.accepted, self.catchup, self.errors):
                metric.labels(name)
            self.draft_seconds.labels(name)
            self.quarantined.labels(name).set(0)

    def declare_requests(self, name: str) -> None:
        """Lets the series of requests of a proposer or policy exist at 0."""
        for selected_by in SelectedBy:
            self.requests.labels(name, selected_by)

    def count(self, name: str, counts: ProposerCounts) -> None:
        """Adds one step's counts."""
        self.emitted.labels(name).inc(counts.emitted)
        if name == NONE:
            return
        self.drafts.labels(name).inc(counts.drafts)
        self.drafted.labels(name).inc(counts.drafted)
        self.accepted.labels(name).inc(counts.accepted)
        for position, accepted in enumerate(counts.accepted_per_position):
            self.accepted_per_position.labels(name, str(position)).inc(accepted)


class Metrics:
    """The gateway's metrics on one registry; an `EngineObserver`.

    Attributes:
        policies: the metrics of policies and routing rules.
        http: the metrics of HTTP requests.
        usage: the metrics of API keys.
        admission: the metrics of the queue and of requests that a limit ends.
        connections: the metrics of connections.
        files: the metrics of keys, audit and log.
        responses: the metrics of stored responses.
        batches: the metrics of files and batches.
        media: the metrics of media in prompts.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        """Long because each metric without a class of its own is made here."""
        make = MetricMaker(registry)
        self._proposers = _ProposerMetrics(make)
        self.policies = PolicyMetrics(make)
        self.http = HttpMetrics(make)
        self.usage = UsageMetrics(make)
        self.admission = AdmissionMetrics(make)
        self.connections = ConnectionMetrics(make)
        self.files = FileMetrics(make)
        self.responses = ResponseMetrics(make)
        self.batches = BatchMetrics(make)
        self.media = MediaMetrics(make)
        self._parser_failures = make.counter(
            "specgate_parser_failures",
            "Choices that a parser could not read to their end",
            "reason",
        )
        for reason in ("time", "error"):
            self._parser_failures.labels(reason)
        self._spec_method = make.gauge(
            "specgate_spec_method_info", "The active method", "spec_method"
        )
        self._fleet_generation = make.gauge(
            "specgate_fleet_generation", "Number of the last fleet switch; 0 before the first"
        )
        self._switches = make.counter(
            "specgate_spec_method_switches", "Switches asked for", "mode", "outcome"
        )
        self._switch_seconds = make.histogram(
            "specgate_spec_method_switch_seconds", "Time to switch", _SWITCH_BUCKETS, "mode"
        )
        self._step_seconds = make.histogram(
            "specgate_step_seconds", "Engine step time", _STEP_BUCKETS, "kind"
        )
        for kind in StepKind:
            self._step_seconds.labels(kind)
        self._restarts = make.counter(
            "specgate_engine_restarts", "Attempts to replace a dead engine process", "outcome"
        )
        for outcome in RestartOutcome:
            self._restarts.labels(outcome)
        self._engine_up = make.gauge("specgate_engine_up", "1 while the engine serves")
        self._engine_given_up = make.gauge(
            "specgate_engine_given_up", "1 when a dead engine will not be replaced any more"
        )
        self._rolling: dict[str, RollingCounts] = {}

    def declare_proposers(self, names: Iterable[str]) -> None:
        """Lets every series of the named proposers, and of `none`, exist at 0."""
        for name in names:
            self._proposers.declare(name)
            self._rolling.setdefault(name, RollingCounts())
        self._proposers.declare(NONE)
        for name in POLICY_NAMES:
            self._proposers.declare_requests(name)

    def forget_proposer(self, name: str) -> None:
        """Removes an unloaded proposer from the rolling figures. Its counters stay."""
        self._rolling.pop(name, None)
        self._proposers.quarantined.labels(name).set(0)

    def declare_switches(self) -> None:
        """Lets the series of switches exist at 0."""
        for mode in SwitchMode:
            self._switch_seconds.labels(mode)
            for outcome in SwitchOutcome:
                self._switches.labels(mode, outcome)

    def on_step(self, report: StepReport) -> None:
        """Counts one engine step (`EngineObserver`)."""
        self._step_seconds.labels(report.kind).observe(report.seconds)
        for name, counts in report.verified.items():
            self._proposers.count(name, counts)
            if name != NONE:
                self._rolling.setdefault(name, RollingCounts()).add(counts)
        for name, seconds in report.draft_seconds.items():
            self._proposers.draft_seconds.labels(name).observe(seconds)
        for name, tokens in report.catchup_tokens.items():
            self._proposers.catchup.labels(name).inc(tokens)
        for name in report.faults:
            self._proposers.errors.labels(name).inc()
        self.admission.show_grammars(report.grammars)
        if report.policy is not None:
            self.policies.on_step(report.policy)

    def on_restart(self, succeeded: bool) -> None:
        """Counts an attempt to replace a dead engine process (`EngineObserver`)."""
        outcome = RestartOutcome.RESTARTED if succeeded else RestartOutcome.FAILED
        self._restarts.labels(outcome).inc()
        if succeeded:
            self.admission.show_grammars(NO_GRAMMARS)

    def set_engine(self, *, up: bool, given_up: bool, quarantined: Collection[str] = ()) -> None:
        """Shows the engine's state.

        Args:
            up: it serves.
            given_up: a dead one will never be replaced.
            quarantined: the proposers that it does not try any more.
        """
        self._engine_up.set(int(up))
        self._engine_given_up.set(int(given_up))
        for name in self._rolling:
            self._proposers.quarantined.labels(name).set(int(name in quarantined))

    def rolling_stats(self) -> dict[str, RollingStats]:
        """Each proposer's sums and ratios of the last minute."""
        return {name: counts.stats() for name, counts in self._rolling.items()}

    def count_parser_failure(self, reason: str) -> None:
        """Counts a choice whose parser has failed: see `ParserFailure`."""
        self._parser_failures.labels(reason).inc()

    def count_request(self, proposer: str, selected_by: SelectedBy) -> None:
        """Counts a request at its admission."""
        self._proposers.requests.labels(proposer, selected_by).inc()

    def set_spec_method(self, name: str) -> None:
        """Shows `name` as the one active method."""
        self._spec_method.clear()
        self._spec_method.labels(name).set(1)

    def set_fleet_generation(self, generation: int) -> None:
        """Shows the number of the last fleet switch."""
        self._fleet_generation.set(generation)

    def count_switch(
        self, mode: SwitchMode, outcome: SwitchOutcome, seconds: float | None = None
    ) -> None:
        """Counts a switch; `seconds` is given for one that reached the engine."""
        self._switches.labels(mode, outcome).inc()
        if seconds is not None:
            self._switch_seconds.labels(mode).observe(seconds)
