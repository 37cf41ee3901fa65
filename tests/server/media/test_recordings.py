"""The bytes of recordings, and of what is none."""

import time
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from engine_adapter.seam.media import Modality
from server.errors import InvalidField
from server.media import recordings as module
from server.media.recordings import decode_recording
from server.media.sources import MediaSource
from tests.server.media.damaged import check_damaged
from tests.server.pictures import encoded
from tests.server.recordings import CODECS, PLAYLISTS, compressed, tone, wav

RATE = 16_000
PARAM = "messages.0.content.0.input_audio.data"
SOURCE = MediaSource(Modality.AUDIO, PARAM)


def refusal(content: bytes) -> str:
    with pytest.raises(InvalidField) as caught:
        decode_recording(content, RATE, SOURCE)
    assert (caught.value.param, caught.value.code) == (PARAM, "invalid_audio")
    return str(caught.value.message)


def test_the_samples_of_a_file_are_read() -> None:
    samples = decode_recording(wav(tone(1)), RATE, SOURCE)
    assert samples.dtype == np.float32
    np.testing.assert_allclose(samples, tone(1), atol=1e-4)


def test_the_channels_of_a_file_are_averaged() -> None:
    samples = decode_recording(wav(tone(1), np.zeros(RATE, np.float32)), RATE, SOURCE)
    np.testing.assert_allclose(samples, tone(1) / 2, atol=1e-4)


@pytest.mark.parametrize("num_channels", [1, 3, 8, 17, 64])
def test_any_number_of_channels_is_read(num_channels: int) -> None:
    samples = decode_recording(wav(*[tone(1)] * num_channels), RATE, SOURCE)
    np.testing.assert_allclose(samples, tone(1), atol=1e-4)


@pytest.mark.parametrize("sample_rate", [8_000, 44_100, 48_000])
def test_another_sample_rate_is_converted(sample_rate: int) -> None:
    content = wav(tone(1, sample_rate), sample_rate=sample_rate)
    samples = decode_recording(content, RATE, SOURCE)
    assert len(samples) == pytest.approx(RATE, abs=2)
    middle = slice(RATE // 4, 3 * RATE // 4)  # filters do not know what is beyond the ends
    np.testing.assert_allclose(samples[middle], tone(1)[middle], atol=0.01)


@pytest.mark.parametrize("kind", CODECS)
def test_a_recording_of_each_format_is_read(kind: str) -> None:
    samples = decode_recording(compressed(kind), RATE, SOURCE)
    assert len(samples) == pytest.approx(RATE, rel=0.15)
    spectrum = np.abs(np.fft.rfft(samples))
    assert np.argmax(spectrum) * RATE / len(samples) == pytest.approx(440, abs=5)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"RIFF",
        b"x" * 1000,
        encoded(),
        encoded(kind="GIF"),
        wav(tone(1))[:44],
        wav(tone(1))[:30],
        compressed("flac")[:100],
    ],
    ids=["nothing", "signature", "letters", "png", "gif", "header", "half a header", "flac"],
)
def test_what_is_no_recording_is_refused(content: bytes) -> None:
    refusal(content)


@pytest.mark.parametrize("kind", PLAYLISTS)
def test_a_file_that_names_others_is_refused(kind: str) -> None:
    begun = time.perf_counter()
    assert "none of the formats" in refusal(PLAYLISTS[kind])
    assert time.perf_counter() - begun < 1


def test_a_recording_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SECONDS", 2)
    assert len(decode_recording(wav(tone(2)), RATE, SOURCE)) == 2 * RATE
    assert "longer than 2 seconds" in refusal(wav(tone(2.1)))


def test_channels_and_rates_do_not_multiply_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DECODED_SAMPLES", 8 * RATE)
    silence = np.zeros(RATE, np.float32)
    decode_recording(wav(*[silence] * 8), RATE, SOURCE)
    assert "more than 128000 samples" in refusal(wav(*[np.tile(silence, 2)] * 8))


@pytest.mark.parametrize("sample_rate", [1, 999, 384_001, 2**31 - 1])
def test_a_sample_rate_that_no_recording_has_is_refused_at_once(sample_rate: int) -> None:
    begun = time.perf_counter()
    assert f"{sample_rate} Hz; 1000 to 384000" in refusal(wav(tone(1), sample_rate=sample_rate))
    assert time.perf_counter() - begun < 1


def test_a_long_file_of_silence_is_refused_at_once() -> None:
    silence = wav(np.zeros(21 * 60 * 8000, np.float32), sample_rate=8000)
    begun = time.perf_counter()
    assert "longer than 600 seconds" in refusal(silence)
    assert time.perf_counter() - begun < 5


def test_a_recording_of_very_many_frames_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    content = compressed("mp3", 3)
    assert len(decode_recording(content, RATE, SOURCE))
    seconds = count()
    clock = SimpleNamespace(thread_time=lambda: next(seconds))
    monkeypatch.setattr(module, "time", clock)
    assert "more than 10 seconds to decode" in refusal(content)
    assert next(seconds) < 20


@pytest.mark.prove
def test_a_thousand_damaged_files_are_read_or_refused_at_once() -> None:
    files = [compressed(kind) for kind in CODECS] + [wav(tone(1))]
    check_damaged(files, lambda content: len(decode_recording(content, RATE, SOURCE)) > 0)
