"""What chat templates get of a message with pictures."""

from typing import Any

from engine_adapter.seam.images import ImageSupport
from server.images.placeholders import with_placeholders

IMAGE = {"type": "image"}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE, IMAGE]},
    {"role": "assistant", "content": None},
    {
        "role": "user",
        "content": [IMAGE, {"type": "text", "text": "b"}, {"type": "text", "text": "c"}],
    },
]


def test_a_template_of_strings_gets_a_line_for_each_picture() -> None:
    support = ImageSupport("<image_{number}>", takes_parts=False, max_images=3)
    contents = [message["content"] for message in with_placeholders(MESSAGES, support)]
    assert contents == ["be brief", "<image_1>\n<image_2>\na", None, "<image_3>\nb\nc"]


def test_a_template_of_parts_gets_parts_only() -> None:
    support = ImageSupport("<image>", takes_parts=True, max_images=3)
    contents = [message["content"] for message in with_placeholders(MESSAGES, support)]
    assert contents[0] == [{"type": "text", "text": "be brief"}]
    assert contents[1:] == [message["content"] for message in MESSAGES[1:]]
