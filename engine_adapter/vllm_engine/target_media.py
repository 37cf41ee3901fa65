"""The form in which vLLM's processor of a target takes recordings and videos."""

import inspect
from collections.abc import Sequence
from typing import Any

from engine_adapter.seam.media import Video, VideoSource
from engine_adapter.vllm_engine import compat

DEFAULT_SAMPLE_RATE = 16_000
"""In Hz, for a processor that names none."""

DEFAULT_FRAMES = 32
"""Frames of a video for a target whose processor does not decide that, as in vLLM."""

NUMBERS = "num_frames", "fps", "max_duration"
"""The options of `--media-io-kwargs` for videos that limit their frames."""

OF_THE_DECODER = "video_backend", "backend", "frame_recovery"
"""Those that say how vLLM decodes. Specgate decodes itself."""


def sample_rate(processing_info: Any) -> int:
    """That of the recordings which a processor takes, in Hz.

    Args:
        processing_info: vLLM's `BaseProcessingInfo` of the target.
    """
    return int(processing_info.data_parser.audio_resampler.target_sr or DEFAULT_SAMPLE_RATE)


class VideoForm:
    """Which frames of a video a target reads, and what its processor hears of them.

    Args:
        model_config: vLLM's.
    """

    def __init__(self, model_config: Any) -> None:
        options = dict(model_config.multimodal_config.media_io_kwargs.get("video", {}))
        registry = compat.VIDEO_LOADER_REGISTRY
        processor = compat.get_video_processor_cls_name(model_config)
        name = registry.get_backend_for_video_processor(processor) or "opencv"
        self._loader = registry.load(options.get("video_backend", name))
        # Each loader has its own defaults, in the arguments of a method that decodes too.
        parameters = inspect.signature(self._loader.load_bytes).parameters
        defaults = {name: parameters[name].default for name in NUMBERS if name in parameters}
        numbers = {"fps": -1, "max_duration": 300, **defaults, "num_frames": DEFAULT_FRAMES}
        self._target = compat.VideoTargetMetadata(
            **{name: options.get(name, number) for name, number in numbers.items()}
        )
        apart = {*NUMBERS, *OF_THE_DECODER}
        self._options = {name: value for name, value in options.items() if name not in apart}

    def choose_frames(self, source: VideoSource) -> Sequence[int]:
        """See `ModalitySupport.choose_frames`."""
        try:
            numbers: list[int] = self._loader.compute_frames_index_to_sample(
                source=self._source(source), target=self._target, **self._options
            )
        except Exception as error:  # such as a division by zero for a single frame
            raise ValueError(f"its frames cannot be chosen: {error}") from error
        return numbers

    def item(self, video: Video) -> Any:
        """The frames, and vLLM's dictionary about them."""
        metadata = self._loader.create_hf_metadata(
            source=self._source(video.source),
            valid_frame_indices=list(video.numbers),
            video_backend="opencv",
        )
        return video.frames, metadata

    def _source(self, source: VideoSource) -> Any:
        duration_s = source.num_frames / source.frame_rate
        return self._loader._prepare_source(
            compat.VideoSourceMetadata(source.num_frames, source.frame_rate, duration_s)
        )
