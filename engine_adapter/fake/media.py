"""Media for the fake engine: a token for every square of a picture and second of a recording."""

from collections.abc import Sequence

from engine_adapter.fake.options import FakeOptions
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.errors import InvalidRequest
from engine_adapter.seam.media import (
    MediaItem,
    MediaPrompt,
    MediaSupport,
    Modality,
    ModalitySupport,
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
    }
    domains = tuple(config.arguments.get("allowed_media_domains") or ())
    return MediaSupport(modalities, False, domains)


def render_media(
    token_ids: Sequence[int], items: Sequence[MediaItem], param: str, placeholder_id: int
) -> MediaPrompt:
    """A prompt in which each placeholder is there as often as its item has squares or seconds.

    Raises `InvalidRequest` if there are not as many placeholders as items.
    """
    if token_ids.count(placeholder_id) != len(items):
        raise InvalidRequest(param, f"{param}: the prompt has another number of placeholders.")
    sizes = iter([_size(item) for item in items])
    tokens: list[int] = []
    for token in token_ids:
        tokens += [token] * (next(sizes) if token == placeholder_id else 1)
    return MediaPrompt(tuple(tokens), None)


def _size(item: MediaItem) -> int:
    """The item's tokens."""
    if item.modality is Modality.AUDIO:
        return -(-len(item.content) // SAMPLE_RATE)
    width, height = item.content.size
    return int(-(-width // SQUARE) * -(-height // SQUARE))
