"""Files of FFmpeg's formats, in memory."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from server.media.sources import MediaSource


@contextmanager
def opened(content: bytes, formats: Sequence[str], source: MediaSource) -> Iterator[Any]:
    """PyAV's container of a file. FFmpeg's errors in the block become `InvalidField`.

    FFmpeg knows formats that are lists of further files, or ask it to receive from an address. It
    reads no others than `formats`, and no protocol may open anything besides the bytes.
    """
    import av

    options = {"format_whitelist": ",".join(formats), "protocol_whitelist": ""}
    try:
        with av.open(io.BytesIO(content), options=options) as container:
            yield container
    except (av.error.FFmpegError, ValueError) as error:  # ValueError: the channels change
        cause = getattr(error, "strerror", None) or error
        reason = f"it is damaged, or has none of the formats {', '.join(formats)} ({cause})"
        raise source.unusable(reason) from error


def first_stream(streams: Sequence[Any], kind: str, source: MediaSource) -> Any:
    """The first of a file's streams of one kind. Raises `InvalidField` if it cannot be decoded."""
    if not streams:
        raise source.unusable(f"it has no {kind}")
    if streams[0].codec_context is None:
        raise source.unusable(f"the codec of its {kind} is not known")
    # The time that is bounded is this thread's.
    streams[0].codec_context.thread_count = 1
    return streams[0]
