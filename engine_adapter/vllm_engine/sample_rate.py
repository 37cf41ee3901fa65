"""The sample rate of a target's recordings."""

from typing import Any

DEFAULT_SAMPLE_RATE = 16_000
"""In Hz, for a processor that names none."""


def sample_rate(processing_info: Any) -> int:
    """That of the recordings which a processor takes, in Hz.

    Args:
        processing_info: vLLM's `BaseProcessingInfo` of the target.
    """
    return int(processing_info.data_parser.audio_resampler.target_sr or DEFAULT_SAMPLE_RATE)
