"""Pieces of a message become items, and the events of their growth."""

from typing import Any

from engine_adapter.seam.types import Alternative, TokenLogprob
from server.openai.message_parts import (
    AssistantMessage,
    CallArguments,
    CallBegin,
    Piece,
    ReasoningPiece,
    TextPiece,
    ToolCall,
)
from server.openai.responses.open_items import EventWriter
from server.openai.responses.output import Output
from tests.server.response_events import checked_events, kinds

PIECES: list[list[Piece]] = [
    [ReasoningPiece("think"), ReasoningPiece(" more")],
    [TextPiece("I call")],
    [TextPiece(" two.")],
    [CallBegin(0, "call_a", "add"), CallArguments(0, '{"x":')],
    [CallArguments(0, "1}"), CallBegin(1, "call_b", "stop")],
]


def streamed(*deltas: list[Piece]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The events and the items."""
    writer = EventWriter()
    output = Output(writer, None)
    for pieces in deltas:
        output.add(pieces)
    items = output.end(complete=True)
    return checked_events(b"".join(writer.take()).decode()), items


def test_each_kind_of_piece_is_an_item_with_its_events_in_order() -> None:
    events, items = streamed(*PIECES)
    assert [item["type"] for item in items] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert kinds(events) == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.done",
        "output_item.done",
    ]


def test_events_of_an_item_name_it_and_its_place() -> None:
    events, items = streamed(*PIECES)
    for event in events:
        item = items[event["output_index"]]
        assert event.get("item_id", item["id"]) == item["id"]
        if "item" in event:
            assert event["item"]["id"] == item["id"]
        assert event.get("content_index", 0) == 0


def test_the_deltas_make_the_text_that_done_has() -> None:
    events, items = streamed(*PIECES)
    texts = [
        "".join(e["delta"] for e in events if e.get("delta") and e["output_index"] == i)
        for i in range(4)
    ]
    assert texts == ["think more", "I call two.", '{"x":1}', ""]
    done = [
        e.get("text", e.get("arguments"))
        for e in events
        if e["type"].endswith((".text.done", "_text.done", "arguments.done"))
    ]
    assert done == texts
    assert [items[0]["content"][0]["text"], items[1]["content"][0]["text"]] == texts[:2]
    assert [items[2]["arguments"], items[3]["arguments"]] == texts[2:]
    assert [(item["call_id"], item["name"]) for item in items[2:]] == [
        ("call_a", "add"),
        ("call_b", "stop"),
    ]


def test_an_item_opens_empty_and_in_progress() -> None:
    events, _ = streamed(*PIECES)
    opened = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [item["status"] for item in opened] == ["in_progress"] * 4
    assert [item.get("content") for item in opened] == [[], [], None, None]
    assert [item.get("arguments") for item in opened] == [None, None, "", ""]


def test_text_after_a_call_is_another_message() -> None:
    _, items = streamed([TextPiece("a")], [CallBegin(0, "c", "f")], [TextPiece("b")])
    assert [item["type"] for item in items] == ["message", "function_call", "message"]
    assert items[2]["content"][0]["text"] == "b"


def test_a_whole_message_makes_the_items_of_its_stream() -> None:
    message = AssistantMessage(
        "I call two.",
        "think more",
        (ToolCall("call_a", "add", '{"x":1}'), ToolCall("call_b", "stop", "")),
    )
    output = Output(EventWriter(silent=True), None)
    output.add_whole(message, [])

    def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**item, "id": None} for item in items]

    assert without_ids(output.end(complete=True)) == without_ids(streamed(*PIECES)[1])


def test_nothing_at_all_is_an_empty_message() -> None:
    events, (item,) = streamed()
    assert item["content"][0]["text"] == ""
    assert kinds(events)[0] == "output_item.added"


def test_only_the_last_item_is_incomplete() -> None:
    output = Output(EventWriter(silent=True), None)
    output.add([TextPiece("a"), CallBegin(0, "c", "f"), CallArguments(0, "{")])
    assert [item["status"] for item in output.so_far()] == ["completed", "incomplete"]
    assert [item["status"] for item in output.end(complete=False)] == ["completed", "incomplete"]


def logprob(token: str) -> TokenLogprob:
    return TokenLogprob(Alternative(5, token, -0.5), (Alternative(5, token, -0.5),))


def test_logprobs_come_with_text_also_those_of_incomplete_characters() -> None:
    writer = EventWriter()
    output = Output(writer, 1)
    output.add([ReasoningPiece("no")], [logprob("no")])
    output.add([TextPiece("a")], [logprob("a")])
    output.add([], [logprob("\ufffd")])
    output.add([TextPiece("é")], [logprob("\ufffd")])
    output.add([], [logprob("end")])
    items = output.end(complete=True)
    events = checked_events(b"".join(writer.take()).decode())
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    assert [[p["token"] for p in e["logprobs"]] for e in deltas] == [["a"], ["\ufffd", "\ufffd"]]
    (part,) = items[1]["content"]
    assert [p["token"] for p in part["logprobs"]] == ["a", "\ufffd", "\ufffd", "end"]
    assert [p["bytes"] for p in part["logprobs"]] == [[97], [], [], list(b"end")]
    (done,) = [e for e in events if e["type"] == "response.output_text.done"]
    assert done["logprobs"] == part["logprobs"]
