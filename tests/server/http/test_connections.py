"""The look at all connections."""

import asyncio

from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from server.http.connections import Connections
from server.settings.http_settings import HttpSettings
from server.telemetry.connection_metrics import CloseReason, ConnectionMetrics
from server.telemetry.metric_maker import MetricMaker


def test_descriptors_that_run_out_are_counted_and_logged_until_they_are_free() -> None:
    registry = CollectorRegistry()
    free = True
    connections = Connections(
        HttpSettings(), 5, ConnectionMetrics(MetricMaker(registry)), exhausted=lambda: not free
    )
    with capture_logs() as lines:
        connections.check(0)
        free = False
        for second in range(1, 13):
            connections.check(second)
        free = True
        connections.check(30)
        connections.check(31)
    assert registry.get_sample_value("specgate_descriptors_exhausted_total") == 12
    assert [(line["event"], line["count"]) for line in lines] == [
        ("descriptors_exhausted", 1),
        ("descriptors_exhausted", 10),
        ("descriptors_exhausted", 1),
    ]


def test_a_closed_idle_connection_is_counted_and_not_logged() -> None:
    registry = CollectorRegistry()
    connections = Connections(HttpSettings(), 5, ConnectionMetrics(MetricMaker(registry)))
    with capture_logs() as lines:
        connections.closing(CloseReason.IDLE, "192.0.2.1", 0)
        connections.closing(CloseReason.NOT_READ, "192.0.2.1", 0, unsent_bytes=7)
    assert [line["reason"] for line in lines] == ["not_read"]
    for reason in CloseReason:
        labels = {"reason": reason.value}
        expected = reason in (CloseReason.IDLE, CloseReason.NOT_READ)
        assert registry.get_sample_value("specgate_connections_closed_total", labels) == expected


async def test_all_connections_are_looked_at_once_a_second() -> None:
    looked = asyncio.Event()

    class Watched:
        def check(self, now: float) -> int:
            looked.set()
            return 0

        def give_way(self) -> bool:
            return False

        def end_unread(self) -> None:
            """Nothing is unread."""

    metrics = ConnectionMetrics(MetricMaker(CollectorRegistry()))
    connections = Connections(HttpSettings(), 5, metrics)
    connections.opened(Watched(), asyncio.get_running_loop())
    await asyncio.wait_for(looked.wait(), 30)
