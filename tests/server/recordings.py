"""Recordings as clients send them."""

import base64
import io
import wave
from typing import Any

import av
import numpy as np
import numpy.typing as npt

CODECS = {
    "mp3": ("libmp3lame", 16_000),
    "flac": ("flac", 16_000),
    "ogg": ("libopus", 48_000),
    "mp4": ("aac", 16_000),
    "adts": ("aac", 16_000),
    "webm": ("libopus", 48_000),
}
"""FFmpeg's name of a format -> a codec of it, and a sample rate of that in Hz."""


def tone(
    seconds: float, sample_rate: int = 16_000, loudness: float = 0.5
) -> npt.NDArray[np.float32]:
    """The samples of a tone of 440 Hz."""
    times = np.arange(round(seconds * sample_rate)) / sample_rate
    return (loudness * np.sin(2 * np.pi * 440 * times)).astype(np.float32)


def wav(*channels: npt.NDArray[np.float32], sample_rate: int = 16_000) -> bytes:
    """The WAV file of channels."""
    samples = (np.stack(channels, axis=-1) * 32_767).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(len(channels))
        writer.setsampwidth(2)
        writer.setframerate(sample_rate)
        writer.writeframes(samples.tobytes())
    return file.getvalue()


def compressed(kind: str, seconds: float = 1.0, loudness: float = 0.5) -> bytes:
    """The file of a tone in a format of `CODECS`."""
    codec, sample_rate = CODECS[kind]
    samples = tone(seconds, sample_rate, loudness)
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream: Any = container.add_stream(codec, rate=sample_rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], "fltp", "mono")
        frame.sample_rate = sample_rate
        stream.open()
        resampler = av.AudioResampler(
            stream.format, "mono", sample_rate, stream.codec_context.frame_size or 1024
        )
        for part in [*resampler.resample(frame), *resampler.resample(None), None]:
            container.mux(stream.encode(part))
    return file.getvalue()


def base64_of(content: bytes) -> str:
    """A file as `input_audio.data` has it."""
    return base64.b64encode(content).decode()


def audio_part(content: bytes | None = None) -> dict[str, Any]:
    """A part of a chat's message."""
    data = base64_of(content or wav(tone(1)))
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


PLAYLISTS = {
    "m3u8": b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
    "concat": b"ffconcat version 1.0\nfile /etc/passwd\n",
    "sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 9 RTP/AVP 0\n",
}
"""Files with which FFmpeg opens other files, or an address, if it may."""
