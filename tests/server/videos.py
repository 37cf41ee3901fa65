"""Videos as clients send them."""

import io
import struct
from typing import Any

import av
import numpy as np

from tests.server.pictures import data_url

CODECS = {"mp4": "libx264", "matroska": "libx264", "webm": "libvpx", "avi": "mpeg4"}
"""FFmpeg's name of a format -> a codec of it."""


def video(
    num_frames: int = 20,
    kind: str = "mp4",
    *,
    width: int = 64,
    height: int = 48,
    frame_rate: int = 10,
) -> bytes:
    """The file of a video. Frame i is gray, `10 * i` bright; the left eighth is black."""
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream: Any = container.add_stream(CODECS[kind], rate=frame_rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(num_frames):
            pixels = np.full((height, width, 3), 10 * number % 256, np.uint8)
            pixels[:, : width // 8] = 0
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()


STRAIGHT = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
TURNED = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30)
"""The matrix of a track, and the one of a telephone that was held upright."""


def turned(content: bytes) -> bytes:
    """An MP4 whose frames are to be shown turned by 90 degrees clockwise."""
    position = content.index(STRAIGHT, content.index(b"tkhd"))
    return content[:position] + TURNED + content[position + len(TURNED) :]


def video_part(content: bytes | None = None) -> dict[str, Any]:
    """A part of a chat's message."""
    url = data_url(content or video(), "video/mp4")
    return {"type": "video_url", "video_url": {"url": url}}
