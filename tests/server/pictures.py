"""Pictures as clients send them."""

import base64
import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image


def encoded(width: int = 56, height: int = 56, kind: str = "PNG", seed: int = 0) -> bytes:
    """The file of a picture with random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def animation() -> bytes:
    """A GIF of two pictures: a black one, then a white one."""
    frames = [Image.new("RGB", (28, 28), color) for color in ("black", "white")]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    return file.getvalue()


def bomb(width: int = 10_000, height: int = 10_000) -> bytes:
    """A PNG of one color: few bytes, many pixels."""
    row = b"\0" + b"\0" * (width // 8)
    pixels = zlib.compressobj(9)
    data = b"".join([pixels.compress(row * 100) for _ in range(height // 100)]) + pixels.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


def data_url(content: bytes, media_type: str = "image/png") -> str:
    """A picture in a URL."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def image_part(content: bytes | None = None) -> dict[str, Any]:
    """A part of a chat's message."""
    return {"type": "image_url", "image_url": {"url": data_url(content or encoded())}}
