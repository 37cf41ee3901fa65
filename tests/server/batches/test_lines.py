"""The lines of a batch: what is read, what is counted, and what an output has already."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.batches.lines import (
    BadLine,
    BatchError,
    LineRules,
    Output,
    RepeatedCustomId,
    Request,
    count_input,
    read_input,
    response_entry,
)

RULES = LineRules(("/v1/completions",), max_bytes=200, max_values=40)


def line(custom_id: str = "a", **body: Any) -> bytes:
    fields = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(fields).encode()


def entry(custom_id: str, usage: Any, status: int = 200) -> dict[str, Any]:
    response = {"status_code": status, "request_id": "r", "body": {"usage": usage}}
    return {"id": "batch_req_1", "custom_id": custom_id, "response": response, "error": None}


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_may_be_as_long_as_the_limit(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "in"
    room = RULES.max_bytes - len(line(prompt="")) - len(end)
    for extra, kind in ((0, Request), (1, BadLine)):
        long = line(prompt="x" * (room + extra))
        path.write_bytes(line("b") + b"\n" + long + end)
        first, second = read_input(path, RULES)
        assert isinstance(first, Request)
        assert isinstance(second, kind), len(long)
    # What follows a line that is too long is read as ever.
    path.write_bytes(b"x" * 10**6 + b"\n" + line("b") + b"\n")
    first, second = read_input(path, RULES)
    assert (first.line, first.custom_id) == (1, None)
    assert (second.line, second.custom_id) == (2, "b")


def test_values_are_counted_before_a_line_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"[" + b"," * 100 + b"\n")
    (item,) = read_input(path, RULES)
    assert isinstance(item, BadLine)
    assert item.message == "the line has more than 40 values"


def test_lines_above_the_limit_are_not_counted_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"".join(line(str(i)) + b"\n" for i in range(9)) + line("0"))
    assert count_input(path, max_items=5) == 6
    with pytest.raises(RepeatedCustomId):
        count_input(path, max_items=10)


def test_what_had_no_effect_is_named_with_the_answer() -> None:
    request = Request(1, "a", "/v1/completions", b"{}")
    headers = {"x-request-id": "r", "x-specgate-ignored-fields": "user_name"}
    entry_with = response_entry(request, httpx.Response(200, headers=headers, json={}))
    assert entry_with["response"]["headers"] == {"x-specgate-ignored-fields": "user_name"}
    plain = response_entry(request, httpx.Response(200, headers={"x-request-id": "r"}, json={}))
    assert "headers" not in plain["response"]


def test_a_repeated_id_says_which_line_without_a_path(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(line("a") + b"\n\n" + line("a") + b"\n")
    with pytest.raises(RepeatedCustomId) as caught:
        count_input(path, RULES)
    assert caught.value.line == 3
    assert str(tmp_path) not in caught.value.reason
    assert str(tmp_path) in str(caught.value)


def test_an_output_knows_its_entries_and_their_tokens(tmp_path: Path) -> None:
    path = tmp_path / "out"
    chat = {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    response = {
        "input_tokens": 10,
        "output_tokens": 20,
        "input_tokens_details": {"cached_tokens": 5},
    }
    with Output(path) as output:
        sizes = [
            output.write(row)
            for row in (
                *(entry("a", chat), entry("b", response), entry("c", None)),
                entry("d", chat, status=400),
            )
        ]
        assert output.num_bytes == sum(sizes) == path.stat().st_size
    with Output(path) as again:
        done = again.done
    assert (done.custom_ids, done.failed, len(done)) == ({"a", "b", "c", "d"}, 1, 4)
    tokens = done.tokens
    assert (tokens.input_tokens, tokens.output_tokens) == (13, 24)
    assert (tokens.cached_tokens, tokens.reasoning_tokens) == (7, 1)


def test_an_input_must_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="not a regular file"):
        count_input(tmp_path, RULES)
