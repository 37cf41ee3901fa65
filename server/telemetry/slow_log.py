"""The log of slow requests: one line each, with times and figures and no content."""

import structlog

from server.telemetry.generation import Generation

log = structlog.get_logger(__name__)


def log_if_slow(generation: Generation, threshold_s: float) -> None:
    """Logs a request that took `threshold_s` seconds or more; 0 logs none."""
    timings = generation.timings
    if not threshold_s or timings.total_s < threshold_s:
        return
    selected, failure = generation.selected, generation.failure
    log.warning(
        "slow_request",
        id=generation.id,
        operation=generation.operation,
        model=generation.model,
        api_key=generation.api_key,
        stream=generation.streams,
        choices=generation.num_choices,
        prepare_s=_seconds(timings.prepared_s),
        queue_s=_seconds(timings.queue_s),
        first_token_s=_seconds(timings.first_token_s),
        total_s=_seconds(timings.total_s),
        prompt_tokens=generation.prompt_tokens,
        cached_tokens=generation.cached_tokens,
        generated_tokens=generation.generated_tokens,
        spec_method=None if selected is None else selected.name,
        selected_by=None if selected is None else selected.selected_by,
        proposers=None if generation.drafts is None else list(generation.drafts),
        draft_tokens=generation.drafted,
        accepted_tokens=generation.accepted,
        error=None if failure is None else failure.code,
    )


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
