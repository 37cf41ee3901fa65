"""The metrics of media in prompts: of pictures, recordings and videos.

Media that could not be used, by reason:
    sum by (modality, outcome) (rate(specgate_media_total{outcome!="read"}[5m]))
Prompt tokens of an item, on average:
    sum(rate(specgate_media_tokens_total[5m])) / sum(rate(specgate_media_total{outcome="read"}[5m]))
The slowest fetches, waits and preparations:
    histogram_quantile(0.95, sum by (stage, le) (rate(specgate_media_seconds_bucket[5m])))
"""

from enum import StrEnum
from itertools import product

from prometheus_client.context_managers import Timer

from engine_adapter.seam.media import Modality
from server.telemetry.metric_maker import MetricMaker

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class MediaOutcome(StrEnum):
    """What became of an item."""

    READ = "read"
    NOT_FETCHED = "not_fetched"
    UNUSABLE = "unusable"


class MediaStage(StrEnum):
    """A part of the time before a prompt with media is complete."""

    FETCH = "fetch"
    WAIT = "wait"
    PROCESS = "process"


class MediaMetrics:
    """The metrics of media in prompts."""

    def __init__(self, make: MetricMaker) -> None:
        labels = "modality", "outcome"
        self._media = make.counter("specgate_media", "Media of prompts", *labels)
        for values in product(Modality, MediaOutcome):
            self._media.labels(*values)
        self._tokens = make.counter("specgate_media_tokens", "Tokens that media add to prompts")
        self._seconds = make.histogram(
            "specgate_media_seconds", "Time to prepare media", _BUCKETS, "stage"
        )
        for stage in MediaStage:
            self._seconds.labels(stage)

    def count(self, modality: Modality, outcome: MediaOutcome) -> None:
        """Counts an item."""
        self._media.labels(modality, outcome).inc()

    def count_tokens(self, num_tokens: int) -> None:
        """Counts tokens that media have added to a prompt."""
        self._tokens.inc(num_tokens)

    def timed(self, stage: MediaStage) -> Timer:
        """Times a block as a stage, also if it raises."""
        return self._seconds.labels(stage).time()
