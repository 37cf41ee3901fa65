"""Media in prompts, which are pictures, recordings and videos, as they cross the seam."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt


class Modality(StrEnum):
    """A kind of media, by vLLM's name."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"


NOUNS = {Modality.IMAGE: "picture", Modality.AUDIO: "recording", Modality.VIDEO: "video"}
"""What errors call an item."""


@dataclass(frozen=True, slots=True)
class VideoSource:
    """A video before frames are chosen.

    Attributes:
        frame_rate: frames per second.
    """

    num_frames: int
    frame_rate: float


@dataclass(frozen=True, slots=True)
class Video:
    """Chosen frames of a video.

    Attributes:
        frames: uint8 [frames, height, width, 3].
        numbers: those of the frames in the source, from 0.
    """

    frames: npt.NDArray[np.uint8]
    numbers: tuple[int, ...]
    source: VideoSource


@dataclass(frozen=True, slots=True)
class MediaItem:
    """A picture, a recording or a video of a prompt.

    Attributes:
        content: a Pillow image in RGB; a recording, float32 [samples], mostly from -1 to 1, with
            the sample rate of its `ModalitySupport`; or a `Video` with the frames that it chooses.
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
        sample_rate: of recordings, in Hz; 0 for others.
        choose_frames: the numbers of the frames that the target reads of a video, in order. Raises
            `ValueError` for a video that it does not take.
    """

    placeholder: str
    max_items: int
    sample_rate: int = 0
    choose_frames: Callable[[VideoSource], Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class MediaSupport:
    """What pictures, recordings and videos a target takes.

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
    """A prompt with media, as `Engine.render_media` makes it.

    Attributes:
        token_ids: with as many tokens for each item as the target reads for it.
        payload: the engine's own.
    """

    token_ids: tuple[int, ...]
    payload: Any
