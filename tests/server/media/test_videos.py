"""The bytes of videos, and of what is none."""

import time
from collections.abc import Sequence
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from engine_adapter.seam.media import Modality, Video, VideoSource
from server.errors import InvalidField
from server.media import videos as module
from server.media.sources import MediaSource
from server.media.videos import decode_video
from tests.server.media.damaged import check_damaged
from tests.server.pictures import encoded
from tests.server.recordings import PLAYLISTS, tone, wav
from tests.server.videos import CODECS, turned, video

PARAM = "messages.0.content.0.video_url.url"
SOURCE = MediaSource(Modality.VIDEO, PARAM)


def every_fifth(source: VideoSource) -> Sequence[int]:
    return range(0, source.num_frames, 5)


def decoded(content: bytes, max_pixels: int = 1 << 27) -> Video:
    return decode_video(content, every_fifth, max_pixels, SOURCE)


def refusal(content: bytes, **bounds: int) -> str:
    with pytest.raises(InvalidField) as caught:
        decoded(content, **bounds)
    assert (caught.value.param, caught.value.code) == (PARAM, "invalid_video")
    return str(caught.value.message)


@pytest.mark.parametrize("kind", CODECS)
def test_the_chosen_frames_of_each_format_are_read(kind: str) -> None:
    read = decoded(video(kind=kind))
    assert (read.frames.shape, read.frames.dtype) == ((4, 48, 64, 3), np.uint8)
    assert read.numbers == (0, 5, 10, 15)
    assert read.source == VideoSource(20, 10.0)
    bright = read.frames[:, :, 16:].mean(axis=(1, 2, 3))
    np.testing.assert_allclose(bright, [0, 50, 100, 150], atol=3)


def test_a_frame_may_be_chosen_twice() -> None:
    read = decode_video(video(), lambda source: (3, 3, 7), 1 << 27, SOURCE)
    assert read.numbers == (3, 3, 7)
    assert (read.frames[0] == read.frames[1]).all()


def test_frames_are_turned_as_they_are_shown() -> None:
    """The black edge at the left is at the top then."""
    straight, upright = decoded(video()).frames[1], decoded(turned(video())).frames[1]
    assert upright.shape == (64, 48, 3)
    assert straight[:, :6].mean() < 10 < straight[:6].mean()
    assert upright[:6].mean() < 10 < upright[:, :6].mean()


@pytest.mark.parametrize(
    "content",
    [b"", b"x" * 1000, encoded(), encoded(kind="GIF"), wav(tone(1)), video()[:200]],
    ids=["nothing", "letters", "png", "gif", "recording", "header"],
)
def test_what_is_no_video_is_refused(content: bytes) -> None:
    refusal(content)


@pytest.mark.parametrize("kind", PLAYLISTS)
def test_a_file_that_names_others_is_refused(kind: str) -> None:
    begun = time.perf_counter()
    assert "none of the formats" in refusal(PLAYLISTS[kind])
    assert time.perf_counter() - begun < 1


def test_a_video_of_too_many_frames_is_refused_before_any_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_FRAMES", 19)
    monkeypatch.setattr(module, "_decode", None)
    assert "more than 19 frames" in refusal(video())


def test_the_pixels_of_a_frame_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PIXELS", 64 * 48 - 1)
    monkeypatch.setattr(module, "_decode", None)
    assert "a frame has 64 x 48 pixels; 3071 can be read" in refusal(video())


def test_the_pixels_of_all_chosen_frames_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 4 * 64 * 48
    assert len(decoded(video(), limit).frames) == 4
    monkeypatch.setattr(module, "_decode", None)
    reason = "5 frames of 64 x 48 pixels are 15360 pixels; 12288 can be read (--max-video-pixels)"
    assert reason in refusal(video(21), max_pixels=limit)


def test_a_video_that_takes_long_to_decode_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = count()
    monkeypatch.setattr(module, "time", SimpleNamespace(thread_time=lambda: next(seconds)))
    assert "more than 20 seconds to decode" in refusal(video(60))


def test_the_reason_why_a_target_takes_no_such_video_is_told() -> None:
    def refuse(source: VideoSource) -> Sequence[int]:
        raise ValueError("it is too short")

    with pytest.raises(InvalidField, match="the model does not take it: it is too short"):
        decode_video(video(), refuse, 1 << 27, SOURCE)


def test_frames_that_a_file_lacks_are_left_out() -> None:
    content = video(40)
    whole = decoded(content)
    part = decoded(video(40, "matroska")[: len(video(40, "matroska")) * 3 // 4])
    assert 0 < len(part.numbers) < len(whole.numbers)
    assert part.numbers == whole.numbers[: len(part.numbers)]


@pytest.mark.prove
def test_a_thousand_damaged_files_are_read_or_refused_at_once() -> None:
    files = [video(kind=kind) for kind in CODECS]
    check_damaged(files, lambda content: len(decoded(content).frames) > 0)
