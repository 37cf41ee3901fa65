"""OpenAI's batch example, with the real client, on the real engine, over a restart."""

import json
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.served import MODEL, Served

pytestmark = [pytest.mark.engine, pytest.mark.prove, pytest.mark.timeout(900)]

PROPOSERS = ("ngram", "suffix", "draft", "none")
URL = "/v1/chat/completions"
LINES = 24


def line(i: int, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Write function number {i}."}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 48, "temperature": 0, **more}
    return {"custom_id": f"request-{i}", "method": "POST", "url": URL, "body": body}


def client_of(server: Served) -> openai.OpenAI:
    transport: Any = httpx.Client(trust_env=False, timeout=120)
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=transport)


def poll(client: openai.OpenAI, batch_id: str, answered: int = LINES) -> openai.types.Batch:
    """The batch, once it has ended or so many requests are answered."""
    deadline = time.monotonic() + 300
    while True:
        batch = client.batches.retrieve(batch_id)
        assert batch.request_counts is not None
        if batch.completed_at or batch.request_counts.completed >= answered:
            return batch
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)


def test_a_batch_is_answered_over_a_restart_and_beside_other_requests(tmp_path: Path) -> None:
    lines = [line(i, spec_decode={"proposer": PROPOSERS[i % 4]}) for i in range(LINES)]
    source = tmp_path / "batchinput.jsonl"
    source.write_text("".join(f"{json.dumps(fields)}\n" for fields in lines))
    flags = ["--files-dir", str(tmp_path / "files")]

    server = Served.start_beside(tmp_path / "first.log", *flags)
    with client_of(server) as client:
        with source.open("rb") as file:
            batch_input_file = client.files.create(file=file, purpose="batch")
        batch = client.batches.create(
            input_file_id=batch_input_file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
        )
        poll(client, batch.id, answered=2)
    assert server.stop() == 0

    server = Served.start_beside(tmp_path / "second.log", *flags)
    with client_of(server) as client:
        while client.batches.retrieve(batch.id).completed_at is None:
            # Each would be a time-out of the client if it waited for the batch.
            client.completions.create(model=MODEL, prompt="def f(x):", max_tokens=1, timeout=20)
            time.sleep(0.1)
        batch = poll(client, batch.id)
        assert batch.request_counts is not None
        assert (batch.status, batch.request_counts.completed) == ("completed", LINES)
        assert batch.output_file_id is not None
        rows = client.files.content(batch.output_file_id).text.splitlines()
        entries = {entry["custom_id"]: entry for entry in map(json.loads, rows)}
        assert (len(rows), set(entries)) == (LINES, {fields["custom_id"] for fields in lines})
        alone = client.chat.completions.create(**line(0)["body"])
    assert server.stop() == 0
    for i, fields in enumerate(lines):
        body = entries[fields["custom_id"]]["response"]["body"]
        assert body["metrics"]["speculative_decoding"]["proposer"] == PROPOSERS[i % 4]
    # The text is that of the request alone, whatever drafted beside it.
    text = entries["request-0"]["response"]["body"]["choices"][0]["message"]["content"]
    assert text == alone.choices[0].message.content
    assert "Traceback" not in (tmp_path / "second.log").read_text()
