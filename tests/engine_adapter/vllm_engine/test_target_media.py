"""Which frames of a video a target reads, and its sample rate."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine_adapter.seam.media import Video, VideoSource
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.target_media import DEFAULT_SAMPLE_RATE, VideoForm, sample_rate

pytestmark = pytest.mark.needs_vllm

MINUTE = VideoSource(1800, 30.0)


def form(monkeypatch: pytest.MonkeyPatch, processor: str | None, **options: Any) -> VideoForm:
    monkeypatch.setattr(compat, "get_video_processor_cls_name", lambda _: processor)
    config = SimpleNamespace(media_io_kwargs={"video": options} if options else {})
    return VideoForm(SimpleNamespace(multimodal_config=config))


def test_a_target_without_a_rule_of_its_own_reads_32_frames(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = form(monkeypatch, None).choose_frames(MINUTE)
    assert (len(numbers), numbers[0], numbers[-1]) == (32, 0, 1799)
    assert form(monkeypatch, None).choose_frames(VideoSource(5, 30.0)) == [0, 1, 2, 3, 4]


def test_a_targets_own_rule_and_its_defaults_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen's models read two frames in a second."""
    for processor in ("Qwen2VLVideoProcessor", "Qwen3VLVideoProcessor"):
        assert len(form(monkeypatch, processor).choose_frames(MINUTE)) == 120


def test_a_video_that_a_rule_cannot_divide_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    chooser = form(monkeypatch, "Qwen2VLVideoProcessor")
    assert chooser.choose_frames(VideoSource(2, 30.0)) == [0, 1]
    with pytest.raises(ValueError, match="its frames cannot be chosen"):
        chooser.choose_frames(VideoSource(1, 30.0))


def test_the_operator_says_how_many_frames_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(form(monkeypatch, None, num_frames=8).choose_frames(MINUTE)) == 8
    rarely = form(monkeypatch, "Qwen3VLVideoProcessor", fps=1, backend="torchcodec")
    assert len(rarely.choose_frames(MINUTE)) == 60
    short = form(monkeypatch, "Qwen3VLVideoProcessor", max_frames=16)
    assert len(short.choose_frames(MINUTE)) == 16


def test_the_processor_hears_which_frames_it_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    video = Video(np.zeros((2, 4, 4, 3), np.uint8), (3, 9), VideoSource(10, 5.0))
    frames, metadata = form(monkeypatch, None).item(video)
    assert frames is video.frames
    assert metadata == {
        "total_num_frames": 10,
        "fps": 5.0,
        "duration": 2.0,
        "video_backend": "opencv",
        "frames_indices": [3, 9],
        "do_sample_frames": False,
    }


@pytest.mark.parametrize(("rate", "expected"), [(24_000.0, 24_000), (None, DEFAULT_SAMPLE_RATE)])
def test_the_sample_rate_is_the_processors(rate: float | None, expected: int) -> None:
    resampler = SimpleNamespace(target_sr=rate)
    info = SimpleNamespace(data_parser=SimpleNamespace(audio_resampler=resampler))
    assert sample_rate(info) == expected
