"""Hostile media on a real engine, with small requests beside them."""

import asyncio
import io
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from server.media.pictures import MAX_PIXELS
from server.media.recordings import MAX_SECONDS
from server.media.videos import MAX_FRAMES
from tests.e2e.served import Served
from tests.e2e.test_hostile_bodies import ERROR_BYTES, TRIES, trial
from tests.server.pictures import animation, bomb, encoded, image_part
from tests.server.recordings import PLAYLISTS, audio_part, compressed, tone, wav
from tests.server.videos import video, video_part

pytestmark = [pytest.mark.engine, pytest.mark.prove]

PATH = "/v1/chat/completions"

Cases = dict[str, tuple[Callable[[], list[dict[str, Any]]], int]]
"""Name -> what makes the parts of the message, and the status of the answer."""


def plain_picture(side: int, kind: str = "PNG") -> bytes:
    """A large picture of one color: few bytes."""
    file = io.BytesIO()
    Image.new("RGB", (side, side), "red").save(file, kind)
    return file.getvalue()


SIDE = int(MAX_PIXELS**0.5)
"""Of the largest square that is read."""

PICTURES: Cases = {
    "the largest picture": (lambda: [image_part(plain_picture(SIDE))], 200),
    "two of the largest": (lambda: [image_part(plain_picture(SIDE, "JPEG"))] * 2, 200),
    "a bomb": (lambda: [image_part(bomb())], 400),
    "many pictures": (
        lambda: [image_part(encoded(280, 280, seed=seed)) for seed in range(24)],
        200,
    ),
    "more pictures than the limit": (lambda: [image_part()] * 65, 400),
    "an animation": (lambda: [image_part(animation())], 200),
    "a strip": (lambda: [image_part(encoded(2, 2000))], 400),
    "svg": (lambda: [image_part(b"<svg xmlns='http://www.w3.org/2000/svg'/>")], 400),
    "half a picture": (lambda: [image_part(encoded(2000, 1000, "BMP")[:2_000_000])], 400),
    "loopback": (
        lambda: [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/a"}}],
        400,
    ),
}


def silence(seconds: int) -> bytes:
    """A long recording: few bytes."""
    return compressed("flac", seconds, loudness=0)


RECORDINGS: Cases = {
    "the longest recording": (lambda: [audio_part(silence(MAX_SECONDS - 1))], 200),
    "a longer one": (lambda: [audio_part(silence(MAX_SECONDS + 10))], 400),
    "two that are too long together": (lambda: [audio_part(silence(MAX_SECONDS - 1))] * 2, 400),
    "many recordings": (lambda: [audio_part(wav(tone(0.2)))] * 16, 200),
    "more recordings than the limit": (lambda: [audio_part()] * 65, 400),
    "half a recording": (lambda: [audio_part(compressed("flac", 60)[:200])], 400),
    "a picture": (lambda: [audio_part(encoded())], 400),
    "an address": (lambda: [audio_part(PLAYLISTS["sdp"])], 400),
    "loopback of a recording": (
        lambda: [{"type": "audio_url", "audio_url": {"url": "http://127.0.0.1:1/a"}}],
        400,
    ),
}


VIDEOS: Cases = {
    "large frames": (lambda: [video_part(video(60, width=3840, height=2160))], 200),
    "many frames": (lambda: [video_part(video(4_200, frame_rate=60))], 200),
    "more frames than the limit": (lambda: [video_part(video(MAX_FRAMES + 1, frame_rate=60))], 400),
    "more pixels than the limit": (
        lambda: [video_part(video(400, width=1280, height=720, frame_rate=4))],
        400,
    ),
    "half a video": (lambda: [video_part(video()[:600])], 400),
    "a playlist": (lambda: [video_part(PLAYLISTS["m3u8"])], 400),
    "loopback of a video": (
        lambda: [{"type": "video_url", "video_url": {"url": "http://127.0.0.1:1/a"}}],
        400,
    ),
}


@pytest.mark.parametrize("name", PICTURES)
def test_small_requests_are_served_beside_each_picture(pictured: Served, name: str) -> None:
    check_beside(pictured, *PICTURES[name], "image_url.url")


@pytest.mark.parametrize("name", RECORDINGS)
def test_small_requests_are_served_beside_each_recording(hearing: Served, name: str) -> None:
    check_beside(hearing, *RECORDINGS[name], "messages.0.content.")


@pytest.mark.parametrize("name", VIDEOS)
def test_small_requests_are_served_beside_each_video(watching: Served, name: str) -> None:
    check_beside(watching, *VIDEOS[name], "messages.0.content.0.video_url.url")


def check_beside(
    served: Served, make_parts: Callable[[], list[dict[str, Any]]], status: int, field: str
) -> None:
    """Small requests take at most three times as long beside a chat with these parts."""
    message = {"role": "user", "content": make_parts()}
    body = {"messages": [message], "max_tokens": 8, "temperature": 0}
    ratios = []
    for _ in range(TRIES):
        alone = asyncio.run(trial(served.url, None))
        done = asyncio.run(trial(served.url, PATH, body))
        assert done.status == status, done.text[:300]
        if status == 400:
            assert len(done.text) < ERROR_BYTES
            assert field in done.text
        ratios.append(done.worst_s / alone.worst_s)
        if ratios[-1] <= 3:
            break
    print(f"{done.seconds:.2f} s, small ones {min(ratios):.2f} times their time alone")
    assert min(ratios) <= 3, ratios
