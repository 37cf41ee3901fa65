"""Media for the fake engine: a token for a square of a picture or frame, and a second of audio."""

from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any

from engine_adapter.fake.options import FakeOptions
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.errors import InvalidRequest
from engine_adapter.seam.media import (
    MediaItem,
    MediaPrompt,
    MediaSupport,
    Modality,
    ModalitySupport,
    Video,
    VideoSource,
)

PLACEHOLDER = "<|pad|>"
"""A special token of the demo's tokenizer: of each item."""

SQUARE = 28
"""Pixels of the side of a square."""

SAMPLE_RATE = 16_000
"""Of recordings, in Hz."""


def media_support(config: EngineConfig, options: FakeOptions) -> MediaSupport | None:
    """What media the engine takes."""
    if not options.fake_media:
        return None
    modalities = {
        Modality.IMAGE: ModalitySupport(PLACEHOLDER, options.fake_media),
        Modality.AUDIO: ModalitySupport(PLACEHOLDER, options.fake_media, SAMPLE_RATE),
        Modality.VIDEO: ModalitySupport(
            PLACEHOLDER, options.fake_media, choose_frames=_one_frame_in_a_second
        ),
    }
    domains = tuple(config.arguments.get("allowed_media_domains") or ())
    return MediaSupport(modalities, False, domains)


def render_media(
    token_ids: Sequence[int],
    items: Sequence[MediaItem],
    param: str,
    processor_kwargs: Mapping[str, Any],
    placeholder_id: int,
) -> MediaPrompt:
    """A prompt in which each placeholder is there as often as its item has squares or seconds.

    Args:
        processor_kwargs: with `max_pixels` the squares have as many.

    Raises:
        InvalidRequest: there are not as many placeholders as items, or a square has one pixel.
    """
    square = isqrt(processor_kwargs.get("max_pixels", SQUARE**2))
    if square == 1:
        raise InvalidRequest(param, f"{param}: the model's processor refuses the media: 1 pixel")
    if token_ids.count(placeholder_id) != len(items):
        raise InvalidRequest(param, f"{param}: the prompt has another number of placeholders.")
    sizes = iter([_size(item, square) for item in items])
    tokens: list[int] = []
    for token in token_ids:
        tokens += [token] * (next(sizes) if token == placeholder_id else 1)
    return MediaPrompt(tuple(tokens), None)


def _size(item: MediaItem, square: int) -> int:
    """The item's tokens."""
    if item.modality is Modality.AUDIO:
        return -(-len(item.content) // SAMPLE_RATE)
    if isinstance(video := item.content, Video):
        num_frames, height, width, _ = video.frames.shape
        return int(num_frames) * _squares(width, height, square)
    width, height = item.content.size
    return _squares(width, height, square)


def _squares(width: int, height: int, square: int) -> int:
    return -(-width // square) * -(-height // square)


def _one_frame_in_a_second(source: VideoSource) -> Sequence[int]:
    return range(0, source.num_frames, max(1, round(source.frame_rate)))
