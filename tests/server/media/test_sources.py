"""Media that a request has itself, and what errors say."""

import pytest

from engine_adapter.seam.media import Modality
from server.errors import InvalidField
from server.media.sources import MediaSource
from tests.server.pictures import data_url
from tests.server.recordings import base64_of

PARAM = "messages.0.content.0.image_url.url"


def picture(url: str) -> MediaSource:
    return MediaSource(Modality.IMAGE, PARAM, url)


@pytest.mark.parametrize(
    "url",
    ["data:", "data:image/png,abc", "data:image/png;base64", "data:image/png;base64,=", "data:,"],
)
def test_a_data_url_without_base64_is_refused(url: str) -> None:
    with pytest.raises(InvalidField) as caught:
        picture(url).read()
    assert (caught.value.param, caught.value.code) == (PARAM, "invalid_image_url")


def test_data_that_is_not_base64_is_refused() -> None:
    with pytest.raises(InvalidField, match=f"{PARAM}: the data is not base64") as caught:
        MediaSource(Modality.AUDIO, PARAM, data="*").read()
    assert caught.value.code == "invalid_audio_url"


def test_the_bytes_of_a_data_url_and_of_data_are_read() -> None:
    assert picture(data_url(b"abc")).read() == b"abc"
    assert MediaSource(Modality.AUDIO, PARAM, data=base64_of(b"abc")).read() == b"abc"


def test_only_what_is_behind_another_url_is_fetched() -> None:
    assert picture(data_url(b"abc")).is_in_body
    assert picture("DATA:image/png;base64,").is_in_body
    assert MediaSource(Modality.AUDIO, PARAM, data="").is_in_body
    assert not picture("http://127.0.0.1/a.png").is_in_body


def test_an_error_names_the_field_and_the_kind_of_item() -> None:
    recording = MediaSource(Modality.AUDIO, "input", "http://127.0.0.1/a")
    error = recording.unreachable("it is away")
    assert (error.param, error.code) == ("input", "invalid_audio_url")
    assert error.message == "input: the recording cannot be fetched: it is away."
    error = picture("").unusable("it is blue")
    assert error.message == f"{PARAM}: the picture cannot be used: it is blue."
    assert error.code == "invalid_image"
