"""The metrics of connections, and of the tasks that serve them.

Connections that the server closed, and why:
    sum by (reason) (rate(specgate_connections_closed_total[5m]))
Streams that were cut because their client did not read them:
    sum by (reason) (
      increase(specgate_connections_closed_total{reason=~"unsent|all_unsent|not_read"}[5m])
    ) > 0
Share of the limit of connections that is used, and of it what is TLS handshakes:
    specgate_connections / specgate_connections_limit
    specgate_tls_handshakes / specgate_connections_limit
Descriptors that ran out:
    increase(specgate_descriptors_exhausted_total[5m]) > 0
Tasks that stay when their requests have ended:
    min_over_time(specgate_event_loop_tasks[1h])
      - min_over_time(specgate_event_loop_tasks[1h] offset 1d) > 10
"""

from enum import StrEnum

from server.telemetry.metric_maker import MetricMaker


class CloseReason(StrEnum):
    """Why the server closed a connection.

    Attributes:
        IDLE: no request came.
        SLOW_HANDSHAKE: the TLS handshake came too slowly.
        BAD_HANDSHAKE: what came is not TLS, or client and server did not agree on it.
        SLOW_HEADERS: a request's headers came too slowly.
        SLOW_BODY: the rest of a body that the server no longer needs came too slowly.
        BAD_REQUEST: what came is not HTTP.
        TOO_LARGE: a URL or headers above a limit.
        UNSENT: a stream whose client is behind by more than `--max-unsent-bytes`.
        ALL_UNSENT: the clients of all connections are behind by more than `--max-all-unsent-bytes`,
            and this one by most.
        NOT_READ: the client has read nothing for `--write-timeout-s`.
        REFUSED: the most connections were open.
    """

    IDLE = "idle"
    SLOW_HANDSHAKE = "slow_handshake"
    BAD_HANDSHAKE = "bad_handshake"
    SLOW_HEADERS = "slow_headers"
    SLOW_BODY = "slow_body"
    BAD_REQUEST = "bad_request"
    TOO_LARGE = "too_large"
    UNSENT = "unsent"
    ALL_UNSENT = "all_unsent"
    NOT_READ = "not_read"
    REFUSED = "refused"


class ConnectionMetrics:
    """Counts connections."""

    def __init__(self, make: MetricMaker) -> None:
        self.num_open = make.gauge("specgate_connections", "Open connections")
        self.handshakes = make.gauge(
            "specgate_tls_handshakes", "Open connections whose TLS handshake is not complete"
        )
        self.limit = make.gauge("specgate_connections_limit", "Most open connections")
        self._closed = make.counter(
            "specgate_connections_closed", "Connections that the server closed", "reason"
        )
        self.exhausted = make.counter(
            "specgate_descriptors_exhausted", "Seconds in which no file descriptor was free"
        )
        self.tasks = make.gauge("specgate_event_loop_tasks", "Tasks of the server's event loop")
        for reason in CloseReason:
            self._closed.labels(reason)

    def count(self, reason: CloseReason) -> None:
        """Counts a connection that the server closes."""
        self._closed.labels(reason).inc()
