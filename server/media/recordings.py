"""The bytes of a recording -> its samples, in bounded memory and time."""

import io
import time
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from server.media.sources import MediaSource

FORMATS = ("wav", "mp3", "flac", "ogg", "aac", "mov", "mp4", "m4a", "matroska", "webm")
"""The formats that are read, by FFmpeg's names. Of several streams, the first one counts.

FFmpeg knows others that are lists of further files, or ask it to receive from an address.
"""

MAX_SECONDS = 600
"""The longest recording, as in vLLM."""

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
    import av

    try:
        # FFmpeg reads the bytes only: no protocol may open anything else.
        options = {"format_whitelist": ",".join(FORMATS), "protocol_whitelist": ""}
        with av.open(io.BytesIO(content), options=options) as container:
            samples = _decode(container, sample_rate, source)
    except (av.error.FFmpegError, ValueError) as error:  # ValueError: the channels change
        cause = getattr(error, "strerror", None) or error
        reason = f"it is damaged, or has none of the formats {', '.join(FORMATS)} ({cause})"
        raise source.unusable(reason) from error
    if not len(samples):
        raise source.unusable("it is empty")
    return samples


def _decode(container: Any, sample_rate: int, source: MediaSource) -> npt.NDArray[Any]:
    """The samples of the first stream of audio; raises PyAV's errors, and `InvalidField`."""
    import av

    if not container.streams.audio:
        raise source.unusable("it has no audio")
    # Packed: PyAV 18 reads beyond the memory of a frame with eight planes.
    resampler = av.AudioResampler(format="flt", rate=sample_rate, frame_size=sample_rate)
    parts = [np.zeros(0, np.float32)]
    num_decoded = num_samples = 0
    ends_at = time.thread_time() + MAX_CPU_S
    for frame in chain(container.decode(container.streams.audio[0]), [None]):
        resampled = [_mean_of_channels(part) for part in resampler.resample(frame)]
        parts += resampled
        num_samples += sum(map(len, resampled))
        num_decoded += 0 if frame is None else frame.samples * frame.layout.nb_channels
        if num_samples > MAX_SECONDS * sample_rate or num_decoded > MAX_DECODED_SAMPLES:
            raise source.unusable(
                f"it is longer than {MAX_SECONDS} seconds, or its channels have more than "
                f"{MAX_DECODED_SAMPLES} samples together"
            )
        if time.thread_time() > ends_at:
            raise source.unusable(f"it takes more than {MAX_CPU_S} seconds to decode")
    return np.concatenate(parts)


def _mean_of_channels(frame: Any) -> npt.NDArray[Any]:
    """The samples of a packed frame, mixed as vLLM does: FFmpeg's own mix is louder."""
    samples: npt.NDArray[Any] = frame.to_ndarray().reshape(-1, frame.layout.nb_channels)
    mixed: npt.NDArray[Any] = samples.mean(axis=1)
    return mixed
