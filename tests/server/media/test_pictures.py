"""The bytes of pictures, and of what is none."""

import time

import pytest

from engine_adapter.seam.media import Modality
from server.errors import InvalidField
from server.media.pictures import FORMATS, MAX_PIXELS, decode_picture
from server.media.sources import MediaSource
from tests.server.media.damaged import check_damaged
from tests.server.pictures import animation, bomb, encoded

PARAM = "messages.0.content.0.image_url.url"
SOURCE = MediaSource(Modality.IMAGE, PARAM)


def refusal(content: bytes) -> str:
    with pytest.raises(InvalidField) as caught:
        decode_picture(content, SOURCE)
    assert (caught.value.param, caught.value.code) == (PARAM, "invalid_image")
    return str(caught.value.message)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_picture_of_each_format_is_read(kind: str) -> None:
    image = decode_picture(encoded(30, 20, kind), SOURCE)
    assert (image.size, image.mode) == ((30, 20), "RGB")


def test_the_first_picture_of_an_animation_is_read() -> None:
    assert decode_picture(animation(), SOURCE).getpixel((5, 5)) == (0, 0, 0)


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded() -> None:
    content = bomb()
    assert len(content) < 100_000
    begun = time.perf_counter()
    assert f"more pixels than {MAX_PIXELS}" in refusal(content)
    assert time.perf_counter() - begun < 1


def test_a_picture_above_the_limit_is_refused_by_its_size() -> None:
    assert f"6000 x 6000 pixels; {MAX_PIXELS}" in refusal(bomb(6000, 6000))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.4",
        b"GIF89a",
    ],
    ids=["nothing", "signature", "svg", "pdf", "gif"],
)
def test_what_is_no_picture_is_refused(content: bytes) -> None:
    refusal(content)


def test_a_file_that_ends_early_is_refused() -> None:
    content = encoded(300, 300)
    assert "damaged" in refusal(content[: len(content) // 2])


def test_a_strip_of_a_picture_is_refused() -> None:
    assert "differ too much" in refusal(encoded(1, 300))


@pytest.mark.prove
def test_a_thousand_damaged_files_are_read_or_refused_at_once() -> None:
    pictures = [encoded(40, 40, kind) for kind in FORMATS] + [animation()]
    check_damaged(pictures, lambda content: decode_picture(content, SOURCE).mode == "RGB")
