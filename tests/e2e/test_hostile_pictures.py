"""Hostile pictures on a real engine, with small requests beside them."""

import asyncio
import io
from typing import Any

import pytest
from PIL import Image

from server.media.pictures import MAX_PIXELS
from tests.e2e.served import Served
from tests.e2e.test_hostile_bodies import ERROR_BYTES, TRIES, trial
from tests.server.pictures import animation, bomb, encoded, image_part

pytestmark = [pytest.mark.engine, pytest.mark.prove]

PATH = "/v1/chat/completions"


def plain_picture(side: int, kind: str = "PNG") -> bytes:
    """A large picture of one color: few bytes."""
    file = io.BytesIO()
    Image.new("RGB", (side, side), "red").save(file, kind)
    return file.getvalue()


SIDE = int(MAX_PIXELS**0.5)
"""Of the largest square that is read."""

CASES: dict[str, tuple[list[dict[str, Any]], int]] = {
    "the largest picture": ([image_part(plain_picture(SIDE))], 200),
    "two of the largest": ([image_part(plain_picture(SIDE, "JPEG"))] * 2, 200),
    "a bomb": ([image_part(bomb())], 400),
    "many pictures": ([image_part(encoded(280, 280, seed=seed)) for seed in range(24)], 200),
    "more pictures than the limit": ([image_part()] * 65, 400),
    "an animation": ([image_part(animation())], 200),
    "a strip": ([image_part(encoded(2, 2000))], 400),
    "svg": ([image_part(b"<svg xmlns='http://www.w3.org/2000/svg'/>")], 400),
    "half a picture": ([image_part(encoded(2000, 1000, "BMP")[:2_000_000])], 400),
    "loopback": ([{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/a"}}], 400),
}
"""Name -> the parts of the message, and the status of the answer."""


@pytest.mark.parametrize("name", CASES)
def test_small_requests_are_served_beside_each_picture(pictured: Served, name: str) -> None:
    parts, status = CASES[name]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 8, "temperature": 0}
    ratios = []
    for _ in range(TRIES):
        alone = asyncio.run(trial(pictured.url, None))
        done = asyncio.run(trial(pictured.url, PATH, body))
        assert done.status == status, done.text[:300]
        if status == 400:
            assert len(done.text) < ERROR_BYTES
            assert "image_url.url" in done.text
        ratios.append(done.worst_s / alone.worst_s)
        if ratios[-1] <= 3:
            break
    print(f"{name}: {done.seconds:.2f} s, small ones {min(ratios):.2f} times their time alone")
    assert min(ratios) <= 3, ratios
