"""What chat templates get of a message with media."""

from typing import Any

from engine_adapter.seam.media import MediaSupport, Modality, ModalitySupport
from server.media.placeholders import with_placeholders

IMAGE, AUDIO = {"type": "image"}, {"type": "audio"}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE, IMAGE]},
    {"role": "assistant", "content": None},
    {
        "role": "user",
        "content": [IMAGE, {"type": "text", "text": "b"}, {"type": "text", "text": "c"}],
    },
]


def support(image: str, *, takes_parts: bool) -> MediaSupport:
    modalities = {
        Modality.IMAGE: ModalitySupport(image, 3),
        Modality.AUDIO: ModalitySupport("<audio_{number}>", 3, 16_000),
    }
    return MediaSupport(modalities, takes_parts)


def test_a_template_of_strings_gets_a_line_for_each_picture() -> None:
    media = support("<image_{number}>", takes_parts=False)
    contents = [message["content"] for message in with_placeholders(MESSAGES, media)]
    assert contents == ["be brief", "<image_1>\n<image_2>\na", None, "<image_3>\nb\nc"]


def test_the_lines_of_one_modality_are_together_and_have_their_own_numbers() -> None:
    media = support("<image_{number}>", takes_parts=False)
    content = [AUDIO, IMAGE, {"type": "text", "text": "a"}, AUDIO]
    messages = [{"role": "user", "content": content}, {"role": "user", "content": [AUDIO]}]
    contents = [message["content"] for message in with_placeholders(messages, media)]
    assert contents == ["<audio_1>\n<audio_2>\n<image_1>\na", "<audio_3>"]


def test_a_template_of_parts_gets_parts_only() -> None:
    media = support("<image>", takes_parts=True)
    contents = [message["content"] for message in with_placeholders(MESSAGES, media)]
    assert contents[0] == [{"type": "text", "text": "be brief"}]
    assert contents[1:] == [message["content"] for message in MESSAGES[1:]]
