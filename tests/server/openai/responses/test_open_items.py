"""Events of a stream: names, numbers, and the text of a frame that is encoded once."""

import json

import pytest

from server.openai.responses.open_items import DeltaFrame, EventWriter


def parsed(event: bytes) -> dict[str, object]:
    name, data = event.decode().removesuffix("\n\n").split("\n")
    found: dict[str, object] = json.loads(data.removeprefix("data: "))
    assert name == f"event: {found['type']}"
    return found


@pytest.mark.parametrize("text", ["a", '"0\\', "line\nline", "\x85\u2028", "漢🙂", "0", "%b %d"])
def test_a_frame_has_any_text_and_number(text: str) -> None:
    frame = DeltaFrame("response.output_text.delta", {"item_id": "m0", "output_index": 0})
    for number in (0, 7, 12345):
        assert parsed(frame.filled(text, number)) == {
            "type": "response.output_text.delta",
            "item_id": "m0",
            "output_index": 0,
            "delta": text,
            "sequence_number": number,
        }


def test_events_are_numbered_in_the_order_of_writing() -> None:
    writer = EventWriter()
    frame = DeltaFrame("b", {})
    writer.write("a", {"x": 1})
    writer.write_delta(frame, "text")
    first = writer.take()
    writer.write("c", {})
    assert [parsed(event)["sequence_number"] for event in (*first, *writer.take())] == [0, 1, 2]
    assert writer.take() == []


def test_a_silent_writer_encodes_nothing() -> None:
    writer = EventWriter(silent=True)
    writer.write("a", {"x": object()})
    writer.write_delta(DeltaFrame("b", {}), "text")
    assert writer.take() == []
