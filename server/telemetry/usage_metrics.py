"""What each API key used: requests and tokens, by the key's name.

The label is the name of a configured key, or `none` for requests without a key, so the series are
bounded.

Tokens by key, per second:
    sum by (api_key) (rate(specgate_key_generated_tokens_total[5m]))
Share of each key's prompt tokens that the prefix cache had:
    sum by (api_key) (rate(specgate_key_cached_tokens_total[5m]))
      / sum by (api_key) (rate(specgate_key_prompt_tokens_total[5m]))
Requests by key in the last day:
    sum by (api_key) (increase(specgate_key_requests_total[1d]))
"""

from collections.abc import Iterable
from functools import cache

from engine_adapter.seam.types import NONE
from server.telemetry.generation import Generation
from server.telemetry.metric_maker import MetricMaker


class UsageMetrics:
    """The metrics with a label `api_key`."""

    def __init__(self, make: MetricMaker) -> None:
        prefix = "specgate_key"
        counters = (
            make.counter(f"{prefix}_requests", "Requests that ended", "api_key"),
            make.counter(f"{prefix}_prompt_tokens", "Prompt tokens", "api_key"),
            make.counter(
                f"{prefix}_cached_tokens", "Prompt tokens found in the prefix cache", "api_key"
            ),
            make.counter(f"{prefix}_generated_tokens", "Tokens generated", "api_key"),
        )
        self._series = cache(lambda name: [counter.labels(name) for counter in counters])

    def declare(self, names: Iterable[str]) -> None:
        """Lets the series of the named keys, and of requests without a key, exist at 0."""
        for name in (*names, NONE):
            self._series(name)

    def count(self, generation: Generation) -> None:
        """Counts an admitted request when it has ended, whole or cut off."""
        if generation.selected is None:
            return
        name = NONE if generation.api_key is None else generation.api_key
        requests, prompt, cached, generated = self._series(name)
        requests.inc()
        prompt.inc(generation.prompt_tokens)
        cached.inc(generation.cached_tokens)
        generated.inc(generation.generated_tokens)
