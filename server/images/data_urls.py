"""`data:` URLs (RFC 2397) with base64, as chats carry pictures."""

import base64
import binascii

from server.errors import InvalidField

INVALID_URL = "invalid_image_url"
"""The code of errors about a picture's URL, or what is behind it."""

SCHEME = "data:"


def read_data_url(url: str, param: str) -> bytes:
    """The bytes of a `data:` URL. Raises `InvalidField`, naming `param`."""
    header, comma, data = url.partition(",")
    if not comma or not header.endswith(";base64"):
        message = f"{param}: a data URL must be data:image/...;base64, and the picture's base64."
        raise InvalidField(param, message, INVALID_URL)
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        message = f"{param}: the data URL is not base64: {error}."
        raise InvalidField(param, message, INVALID_URL) from error
