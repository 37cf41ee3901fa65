"""The metrics of stored responses.

The share of the limits that is used, with the defaults of the settings:
    specgate_stored_responses / 1000
    specgate_stored_response_bytes / (256 * 2^20)

Responses in the background that run or wait:
    specgate_background_responses
"""

from typing import Protocol

from server.telemetry.metric_maker import MetricMaker


class WatchedStore(Protocol):
    """What the gauges read when they are scraped."""

    num_bytes: int
    num_running: int

    def __len__(self) -> int:
        """The stored responses."""
        ...


class ResponseMetrics:
    """The metrics of stored responses."""

    def __init__(self, make: MetricMaker) -> None:
        self._stored = make.gauge("specgate_stored_responses", "Responses of /v1/responses stored")
        self._bytes = make.gauge("specgate_stored_response_bytes", "Bytes that they count as")
        self._running = make.gauge(
            "specgate_background_responses", "Responses of /v1/responses that run in the background"
        )

    def watch(self, store: WatchedStore) -> None:
        """Makes the gauges show this store, read at each scrape."""
        self._stored.set_function(lambda: len(store))
        self._bytes.set_function(lambda: store.num_bytes)
        self._running.set_function(lambda: store.num_running)
