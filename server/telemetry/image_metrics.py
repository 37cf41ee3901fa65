"""The metrics of pictures in prompts.

Pictures that could not be used, by reason:
    sum by (outcome) (rate(specgate_images_total{outcome!="read"}[5m]))
Prompt tokens of a picture, on average:
    rate(specgate_image_tokens_total[5m])
      / ignoring(outcome) rate(specgate_images_total{outcome="read"}[5m])
The slowest fetches, waits and preparations:
    histogram_quantile(0.95, sum by (stage, le) (rate(specgate_image_seconds_bucket[5m])))
"""

from enum import StrEnum

from prometheus_client.context_managers import Timer

from server.telemetry.metric_maker import MetricMaker

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ImageOutcome(StrEnum):
    """What became of a picture."""

    READ = "read"
    NOT_FETCHED = "not_fetched"
    UNUSABLE = "unusable"


class ImageStage(StrEnum):
    """A part of the time before a prompt with pictures is complete."""

    FETCH = "fetch"
    WAIT = "wait"
    PROCESS = "process"


class ImageMetrics:
    """The metrics of pictures in prompts."""

    def __init__(self, make: MetricMaker) -> None:
        self._images = make.counter("specgate_images", "Pictures of prompts", "outcome")
        for outcome in ImageOutcome:
            self._images.labels(outcome)
        self._tokens = make.counter("specgate_image_tokens", "Tokens that pictures add to prompts")
        self._seconds = make.histogram(
            "specgate_image_seconds", "Time to prepare pictures", _BUCKETS, "stage"
        )
        for stage in ImageStage:
            self._seconds.labels(stage)

    def count(self, outcome: ImageOutcome, num_images: int = 1) -> None:
        """Counts pictures."""
        self._images.labels(outcome).inc(num_images)

    def count_tokens(self, num_tokens: int) -> None:
        """Counts tokens that pictures have added to a prompt."""
        self._tokens.inc(num_tokens)

    def timed(self, stage: ImageStage) -> Timer:
        """Times a block as a stage, also if it raises."""
        return self._seconds.labels(stage).time()
