"""The metrics of the files that the server reads and writes while it runs: keys, audit, log.

Admin changes whose record could not be written, and log lines:
    sum by (record) (increase(specgate_audit_write_failures_total[15m])) > 0
    increase(specgate_log_write_failures_total[15m]) > 0
Key files that could not be used:
    increase(specgate_key_reloads_total{outcome="refused"}[15m]) > 0
"""

from enum import StrEnum

from server.telemetry.metric_maker import MetricMaker


class AuditPart(StrEnum):
    """A line of the audit file.

    Attributes:
        INTENT: it is written before a change, with `--audit-required`. Without it nothing changes.
        OUTCOME: it is written after a change. Without it the file does not have what happened.
    """

    INTENT = "intent"
    OUTCOME = "outcome"


class FileMetrics:
    """Counts failures of the server's files. Every series exists from the beginning."""

    def __init__(self, make: MetricMaker) -> None:
        self._reloads = make.counter(
            "specgate_key_reloads", "Times that the key file was read again", "outcome"
        )
        self._audit_failures = make.counter(
            "specgate_audit_write_failures", "Audit lines that could not be written", "record"
        )
        self.log_failures = make.counter(
            "specgate_log_write_failures", "Log lines that could not be written"
        )
        for outcome in ("reloaded", "refused"):
            self._reloads.labels(outcome)
        for part in AuditPart:
            self._audit_failures.labels(part)

    def count_reload(self, *, refused: bool) -> None:
        """Counts a key file that was read again, or that could not be used."""
        self._reloads.labels("refused" if refused else "reloaded").inc()

    def count_audit_failure(self, part: AuditPart) -> None:
        """Counts a line of the audit that is not in its file."""
        self._audit_failures.labels(part).inc()
