"""The bytes of a recording -> its samples, in bounded memory and time."""

import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from server.media.containers import first_stream, opened
from server.media.sources import MediaSource

FORMATS = ("wav", "mp3", "flac", "ogg", "aac", "mov", "mp4", "m4a", "matroska", "webm")
"""The formats that are read, by FFmpeg's names. Of several streams, the first one counts."""

MAX_SECONDS = 600
"""The longest recording, as in vLLM."""

SAMPLE_RATES = range(1_000, 384_001)
"""Those that are read, in Hz."""

MAX_CPU_S = 10
"""The most CPU time for a recording: ordinary ones of 600 seconds take 0.5 to 2.5."""

MAX_DECODED_SAMPLES = MAX_SECONDS * 2 * 48_000
"""The most samples that are decoded, of all channels: those of the longest recording in stereo."""


def decode_recording(content: bytes, sample_rate: int, source: MediaSource) -> npt.NDArray[Any]:
    """The mean of a recording's channels. Blocks; call it in a thread.

    Args:
        sample_rate: of the result, in Hz.

    Returns float32 [samples], mostly from -1 to 1.

    Raises:
        InvalidField: the bytes are not a recording, or one that is too long.
    """
    with opened(content, FORMATS, source) as container:
        samples = _decode(container, sample_rate, source)
    if not len(samples):
        raise source.unusable("it is empty")
    return samples


def _decode(container: Any, sample_rate: int, source: MediaSource) -> npt.NDArray[Any]:
    """The samples of the first stream of audio; raises PyAV's errors, and `InvalidField`."""
    import av

    stream = first_stream(container.streams.audio, "audio", source)
    # Packed: PyAV 18 reads beyond the memory of a frame with eight planes.
    resampler = av.AudioResampler(format="flt", rate=sample_rate, frame_size=sample_rate)
    parts = [np.zeros(0, np.float32)]
    num_samples = 0
    for frame in chain(_bounded(container.decode(stream), source), [None]):
        resampled = [_mean_of_channels(part) for part in resampler.resample(frame)]
        parts += resampled
        num_samples += sum(map(len, resampled))
        if num_samples > MAX_SECONDS * sample_rate:
            raise source.unusable(f"it is longer than {MAX_SECONDS} seconds")
    return np.concatenate(parts)


def _bounded(frames: Iterable[Any], source: MediaSource) -> Iterator[Any]:
    """The decoded frames; raises `InvalidField` where they become too many."""
    ends_at = time.thread_time() + MAX_CPU_S
    num_decoded = 0
    for frame in frames:
        # A resampler for a rate that a damaged header names takes half a minute to be made.
        if frame.sample_rate not in SAMPLE_RATES:
            rates = f"{SAMPLE_RATES[0]} to {SAMPLE_RATES[-1]}"
            reason = f"its sample rate is {frame.sample_rate} Hz; {rates} can be read"
            raise source.unusable(reason)
        num_decoded += frame.samples * frame.layout.nb_channels
        if num_decoded > MAX_DECODED_SAMPLES:
            reason = f"its channels have more than {MAX_DECODED_SAMPLES} samples together"
            raise source.unusable(reason)
        if time.thread_time() > ends_at:
            raise source.unusable(f"it takes more than {MAX_CPU_S} seconds to decode")
        yield frame


def _mean_of_channels(frame: Any) -> npt.NDArray[Any]:
    """The samples of a packed frame, mixed as vLLM does: FFmpeg's own mix is louder."""
    samples: npt.NDArray[Any] = frame.to_ndarray().reshape(-1, frame.layout.nb_channels)
    mixed: npt.NDArray[Any] = samples.mean(axis=1)
    return mixed
