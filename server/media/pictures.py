"""The bytes of a picture -> the picture, in bounded memory and time."""

import io
from typing import Any

from server.media.sources import MediaSource

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""The formats that are read, by Pillow's names. Of an animation, only the first picture counts."""

MAX_PIXELS = 2**25
"""The most pixels of a picture: 100 MB in memory."""

MAX_SIDE_RATIO = 200
"""How many times as long as the other a side may be: processors divide and refuse such pictures."""


def decode_picture(content: bytes, source: MediaSource) -> Any:
    """The picture as a Pillow image in RGB. Blocks; call it in a thread.

    Its size is read from its header, before any pixel is decoded.

    Raises:
        InvalidField: the bytes are not a picture, or one that is too large.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError:
        raise source.unusable(f"it has none of the formats {', '.join(FORMATS)}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise source.unusable(f"it has far more pixels than {MAX_PIXELS}") from None
    except Exception as error:  # Pillow's readers raise many types for damaged files
        raise source.unusable(f"its header cannot be read ({error})") from error
    with image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise source.unusable(f"it has {width} x {height} pixels; {MAX_PIXELS} can be read")
        if not width or not height or max(width, height) > MAX_SIDE_RATIO * min(width, height):
            raise source.unusable(f"its sides of {width} and {height} pixels differ too much")
        try:
            return ImageOps.exif_transpose(image.convert("RGB"))
        except Exception as error:  # see above
            raise source.unusable(f"it is damaged ({error})") from error
