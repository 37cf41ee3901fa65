"""The metrics of files and batches.

Batches that have not ended, and those that ended without being completed:
    specgate_unfinished_batches
    sum by (status) (increase(specgate_batches_total{status!="completed"}[1h])) > 0
Lines of batches per second, by outcome:
    sum by (outcome) (rate(specgate_batch_requests_total[5m]))
Files on disk:
    specgate_files
    specgate_file_bytes
"""

from typing import Protocol

from server.telemetry.metric_maker import MetricMaker

ENDS = ("completed", "failed", "expired", "cancelled")


class WatchedFiles(Protocol):
    """What the gauges of files read when they are scraped."""

    num_files: int
    num_bytes: int


class WatchedBatches(Protocol):
    """What the gauge of batches reads when it is scraped."""

    num_unfinished: int


class BatchMetrics:
    """The metrics of files and batches. Every series exists from the beginning."""

    def __init__(self, make: MetricMaker) -> None:
        self._files = make.gauge("specgate_files", "Files of /v1/files")
        self._bytes = make.gauge(
            "specgate_file_bytes", "Bytes of these files and of those that are being written"
        )
        self._unfinished = make.gauge(
            "specgate_unfinished_batches", "Batches of /v1/batches that have not ended"
        )
        self._ended = make.counter("specgate_batches", "Batches that ended", "status")
        self._requests = make.counter(
            "specgate_batch_requests", "Lines of batches that have their entry", "outcome"
        )
        for status in ENDS:
            self._ended.labels(status)
        for outcome in ("completed", "failed"):
            self._requests.labels(outcome)

    def watch(self, files: WatchedFiles, batches: WatchedBatches) -> None:
        """Makes the gauges show these files and batches, read at each scrape."""
        self._files.set_function(lambda: files.num_files)
        self._bytes.set_function(lambda: files.num_bytes)
        self._unfinished.set_function(lambda: batches.num_unfinished)

    def count_ended(self, status: str) -> None:
        """Counts a batch that ended."""
        self._ended.labels(status).inc()

    def count_request(self, *, completed: bool) -> None:
        """Counts a line that has its entry."""
        self._requests.labels("completed" if completed else "failed").inc()

    def count_unanswered(self, number: int) -> None:
        """Counts lines that have an error because their batch has ended."""
        self._requests.labels("failed").inc(number)
