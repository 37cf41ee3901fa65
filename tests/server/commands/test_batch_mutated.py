"""`specgate batch` on lines whose bodies are nearly valid: each has an entry, and nothing fails."""

import json
from pathlib import Path

import pytest

from server.cli import main
from server.commands import FAILED
from tests.server.hostile.mutations import mutated

LINES = 300
GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


def line(number: int, url: str, content: bytes) -> bytes:
    """A line with a body, which may break it."""
    head = json.dumps({"custom_id": f"r{number}", "method": "POST", "url": url})
    return head[:-1].encode() + b', "body": ' + content.replace(b"\n", b" ") + b"}"


def test_every_line_has_an_entry_with_any_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.commands.batch.configure_logs", lambda *_, **__: None)
    bodies = (mutated(seed) for seed in range(3 * LINES))
    lines = [
        line(number, path, content)
        for number, (_, path, content) in enumerate(bodies)
        if path in GENERATING
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b"\n".join(lines) + b"\n")
    flags = ("--engine", "fake", "--engine-args", '{"fake_step_ms": 0}', "--max-model-len", "256")
    assert main(["batch", str(source), str(target), *flags]) == FAILED
    entries = [json.loads(entry) for entry in target.read_text().splitlines()]
    assert len(entries) == len(lines) > LINES
    statuses = {entry["response"] and entry["response"]["status_code"] for entry in entries}
    assert statuses <= {None, 200, 400, 404}, statuses
    assert {None, 200, 400} <= statuses
    assert all(
        entry["error"]["code"] == "invalid_line" for entry in entries if not entry["response"]
    )
