"""Pictures in prompts, as they cross the seam. A picture is a Pillow image in RGB."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ImageSupport:
    """What pictures a target takes.

    Attributes:
        placeholder: the text that stands for a picture in a chat whose messages are strings;
            `{number}` is the picture's number in the chat, from 1.
        takes_parts: the chat template takes a message's content as a list of parts, and writes the
            placeholders itself.
        max_images: of a request.
        allowed_domains: hosts from which pictures may be fetched.
    """

    placeholder: str
    takes_parts: bool
    max_images: int
    allowed_domains: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """A prompt with pictures, as `Engine.render_images` makes it.

    Attributes:
        token_ids: with as many tokens for each picture as the target reads for it.
        payload: the engine's own.
    """

    token_ids: tuple[int, ...]
    payload: Any
