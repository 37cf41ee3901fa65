"""Media in prompts, which are pictures and recordings, as they cross the seam."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Modality(StrEnum):
    """A kind of media, by vLLM's name."""

    IMAGE = "image"
    AUDIO = "audio"


NOUNS = {Modality.IMAGE: "picture", Modality.AUDIO: "recording"}
"""What errors call an item."""


@dataclass(frozen=True, slots=True)
class MediaItem:
    """A picture or a recording of a prompt.

    Attributes:
        content: a Pillow image in RGB; or a recording, float32 [samples], mostly from -1 to 1, with
            the sample rate of its `ModalitySupport`.
    """

    modality: Modality
    content: Any


@dataclass(frozen=True, slots=True)
class ModalitySupport:
    """What a target takes of one modality.

    Attributes:
        placeholder: the text that stands for an item in a chat whose messages are strings;
            `{number}` is the item's number in the chat, from 1.
        max_items: of a request.
        sample_rate: of recordings, in Hz; 0 for pictures.
    """

    placeholder: str
    max_items: int
    sample_rate: int = 0


@dataclass(frozen=True, slots=True)
class MediaSupport:
    """What pictures and recordings a target takes.

    Attributes:
        modalities: those that it takes.
        takes_parts: the chat template takes a message's content as a list of parts, and writes the
            placeholders itself.
        allowed_domains: hosts from which media may be fetched.
    """

    modalities: Mapping[Modality, ModalitySupport]
    takes_parts: bool
    allowed_domains: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MediaPrompt:
    """A prompt with pictures or recordings, as `Engine.render_media` makes it.

    Attributes:
        token_ids: with as many tokens for each item as the target reads for it.
        payload: the engine's own.
    """

    token_ids: tuple[int, ...]
    payload: Any
