"""Where the media of a chat are, and what an error says about one."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass

from engine_adapter.seam.media import NOUNS, Modality
from server.errors import InvalidField

INVALID = {
    Modality.IMAGE: "invalid_image",
    Modality.AUDIO: "invalid_audio",
    Modality.VIDEO: "invalid_video",
}
"""The code of errors about an item's content."""

INVALID_URL = {
    Modality.IMAGE: "invalid_image_url",
    Modality.AUDIO: "invalid_audio_url",
    Modality.VIDEO: "invalid_video_url",
}
"""The code of errors about its URL, or its base64."""

_SCHEME = "data:"


@dataclass(frozen=True, slots=True)
class MediaSource:
    """Where a picture, a recording or a video is.

    Attributes:
        param: the field of the request that has it.
        url: its URL; empty for a source with `data`.
        data: its base64; `None` for a source with a URL.
    """

    modality: Modality
    param: str
    url: str = ""
    data: str | None = None

    @property
    def is_in_body(self) -> bool:
        """Whether the request itself has the content, so that nothing is fetched."""
        return self.data is not None or self.url[: len(_SCHEME)].lower() == _SCHEME

    def read(self) -> bytes:
        """The content that the request has: base64, or a `data:` URL (RFC 2397) with base64.

        Raises `InvalidField`.
        """
        data = self.data
        if data is None:
            header, comma, data = self.url.partition(",")
            if not comma or not header.endswith(";base64"):
                form = f"data:{self.modality}/...;base64, and the {self._noun}'s base64"
                raise self._error(f"a data URL must be {form}", INVALID_URL)
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise self._error(f"the data is not base64: {error}", INVALID_URL) from error

    def unreachable(self, reason: str) -> InvalidField:
        """The error for a URL that may not be, or cannot be, fetched."""
        return self._error(f"the {self._noun} cannot be fetched: {reason}", INVALID_URL)

    def unusable(self, reason: str) -> InvalidField:
        """The error for a content that is broken, too large, or has an unknown format."""
        return self._error(f"the {self._noun} cannot be used: {reason}", INVALID)

    @property
    def _noun(self) -> str:
        return NOUNS[self.modality]

    def _error(self, reason: str, codes: Mapping[Modality, str]) -> InvalidField:
        return InvalidField(self.param, f"{self.param}: {reason}.", codes[self.modality])
