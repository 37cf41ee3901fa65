"""The bytes of a video -> some of its frames, in bounded memory and time."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_adapter.seam.media import Video, VideoSource
from server.media.containers import first_stream, opened
from server.media.pictures import MAX_PIXELS
from server.media.sources import MediaSource

FORMATS = ("mov", "mp4", "matroska", "webm", "avi", "mpegts")
"""The formats that are read, by FFmpeg's names. Of several streams, the first one counts."""

MAX_FRAMES = 36_000
"""The most frames of a video: those of ten minutes with 60 in a second."""

MAX_CPU_S = 20
"""The most CPU time for a video: 600 frames of 1280 x 720 pixels take 2 to 4."""

ChooseFrames = Callable[[VideoSource], Sequence[int]]
"""The numbers of the frames that a target reads of a video, from 0 and in order."""


def decode_video(
    content: bytes, choose_frames: ChooseFrames, max_pixels: int, source: MediaSource
) -> Video:
    """The frames that a target reads. Blocks; call it in a thread.

    The size of a frame and the number of all frames are read before any is decoded.

    Args:
        content: the file.
        choose_frames: the target's rule.
        max_pixels: the most pixels of the chosen frames together.
        source: where the video comes from.

    Raises:
        InvalidField: the bytes are not a video, or one that is too long or too large.
    """
    with opened(content, FORMATS, source) as container:
        stream = _stream(container, source)
        size = stream.codec_context.height, stream.codec_context.width
        original = _original(container, stream, source)
    try:
        numbers = choose_frames(original)
    except ValueError as error:
        raise source.unusable(f"the model does not take it: {error}") from error
    pixels = len(numbers) * size[0] * size[1]
    if pixels > max_pixels:
        raise source.unusable(
            f"{len(numbers)} frames of {size[1]} x {size[0]} pixels are {pixels} pixels; "
            f"{max_pixels} can be read (--max-video-pixels)"
        )
    with opened(content, FORMATS, source) as container:
        frames, is_decoded = _decode(container, numbers, size, source)
    if not is_decoded.any():
        raise source.unusable("it has none of the frames that the model reads")
    if not is_decoded.all():
        frames, numbers = frames[is_decoded], np.asarray(numbers)[is_decoded].tolist()
    return Video(frames, tuple(numbers), original)


def _stream(container: Any, source: MediaSource) -> Any:
    """The first stream of a video, whose frames are bounded."""
    stream = first_stream(container.streams.video, "video", source)
    width, height = stream.codec_context.width, stream.codec_context.height
    if not 0 < width * height <= MAX_PIXELS:
        raise source.unusable(f"a frame has {width} x {height} pixels; {MAX_PIXELS} can be read")
    # A later frame may be larger than the header says.
    stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
    return stream


def _original(container: Any, stream: Any, source: MediaSource) -> VideoSource:
    """Counts the frames: what the header says of them need not be true."""
    frame_rate = float(stream.average_rate or stream.guessed_rate or 0)
    if frame_rate <= 0:
        raise source.unusable("it does not say how many frames it has in a second")
    num_frames = 0
    for packet in container.demux(stream):
        num_frames += packet.size > 0
        if num_frames > MAX_FRAMES:
            raise source.unusable(f"it has more than {MAX_FRAMES} frames")
    return VideoSource(num_frames, frame_rate)


def _decode(
    container: Any, numbers: Sequence[int], size: tuple[int, int], source: MediaSource
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """The frames with these numbers, and which of them the video has.

    Returns uint8 [numbers, height, width, 3] and bool [numbers].
    """
    stream = _stream(container, source)
    ends_at = time.thread_time() + MAX_CPU_S
    frames = np.zeros((0, *size, 3), np.uint8)
    chosen_numbers = np.asarray(numbers)
    is_decoded = np.zeros(len(chosen_numbers), bool)
    for number, frame in enumerate(container.decode(stream)):
        if (is_number := chosen_numbers == number).any():
            pixels = frame.reformat(size[1], size[0], "rgb24").to_ndarray()
            # Telephones store a turn, and not turned frames.
            turned = np.rot90(pixels, round(frame.rotation / 90))
            if not is_decoded.any():
                frames = np.empty((len(chosen_numbers), *turned.shape), np.uint8)
            frames[is_number] = turned
            is_decoded |= is_number
        if is_decoded.all():
            break
        if time.thread_time() > ends_at:
            raise source.unusable(f"it takes more than {MAX_CPU_S} seconds to decode")
    return frames, is_decoded
