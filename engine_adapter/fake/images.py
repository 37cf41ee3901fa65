"""Pictures for the fake engine: each takes a token for every square of its pixels."""

from collections.abc import Sequence
from typing import Any

from engine_adapter.fake.options import FakeOptions
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.errors import InvalidRequest
from engine_adapter.seam.images import ImagePrompt, ImageSupport

PLACEHOLDER = "<|pad|>"
"""A special token of the demo's tokenizer."""

SQUARE = 28
"""Pixels of the side of a square."""


def image_support(config: EngineConfig, options: FakeOptions) -> ImageSupport | None:
    """What pictures the engine takes."""
    if not options.fake_images:
        return None
    domains = tuple(config.arguments.get("allowed_media_domains") or ())
    return ImageSupport(PLACEHOLDER, False, options.fake_images, domains)


def render_images(
    token_ids: Sequence[int], images: Sequence[Any], param: str, placeholder_id: int
) -> ImagePrompt:
    """A prompt in which each placeholder is there as often as its picture has squares.

    Raises `InvalidRequest` if there are not as many placeholders as pictures.
    """
    if token_ids.count(placeholder_id) != len(images):
        raise InvalidRequest(param, f"{param}: the prompt has another number of placeholders.")
    sizes = iter([-(-image.width // SQUARE) * -(-image.height // SQUARE) for image in images])
    tokens: list[int] = []
    for token in token_ids:
        tokens += [token] * (next(sizes) if token == placeholder_id else 1)
    return ImagePrompt(tuple(tokens), None)
