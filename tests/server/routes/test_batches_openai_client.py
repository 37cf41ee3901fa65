"""The batch example of OpenAI's documentation, with the real client against a loopback port."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from structlog.testing import capture_logs

from tests.server.gateway import MODEL
from tests.server.threaded import ThreadedServer


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedServer]:
    folder = tmp_path_factory.mktemp("files") / "kept"
    served = ThreadedServer(files_dir=str(folder), engine_args={"fake_step_ms": 1}).start()
    yield served
    served.stop()


@pytest.fixture(scope="module")
def client(served: ThreadedServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def line(custom_id: str, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hello world!"}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 10, **body}
    url = "/v1/chat/completions"
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def run(client: openai.OpenAI, path: Path, lines: list[Any]) -> openai.types.Batch:
    """What OpenAI's guide does: upload, create, poll."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in lines))
    with path.open("rb") as file:
        batch_input_file = client.files.create(file=file, purpose="batch")
    batch = client.batches.create(
        input_file_id=batch_input_file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"description": "nightly eval job"},
    )
    deadline = time.monotonic() + 120
    while batch.status in ("validating", "in_progress", "finalizing"):
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


def test_the_batch_example_runs_unchanged(client: openai.OpenAI, tmp_path: Path) -> None:
    lines = [line("request-1"), line("request-2", temperature=0), line("request-3", temperature=9)]
    batch = run(client, tmp_path / "batchinput.jsonl", lines)
    assert batch.status == "completed"
    assert batch.metadata == {"description": "nightly eval job"}
    counts = batch.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (3, 2, 1)
    assert batch.usage is not None
    assert batch.usage.output_tokens == 20
    assert batch.usage.total_tokens == batch.usage.input_tokens + 20
    assert batch.output_file_id is not None
    answers = [json.loads(row) for row in client.files.content(batch.output_file_id).iter_lines()]
    assert {answer["custom_id"] for answer in answers} == {"request-1", "request-2"}
    for answer in answers:
        assert answer["error"] is None
        assert answer["response"]["status_code"] == 200
        completion = openai.types.chat.ChatCompletion.model_validate(answer["response"]["body"])
        assert completion.choices[0].finish_reason == "length"
    assert batch.error_file_id is not None
    (refusal,) = client.files.content(batch.error_file_id).text.splitlines()
    entry = json.loads(refusal)
    assert (entry["custom_id"], entry["response"]["status_code"]) == ("request-3", 400)
    assert entry["response"]["body"]["error"]["param"] == "temperature"


def test_files_and_batches_are_listed_and_deleted(client: openai.OpenAI, tmp_path: Path) -> None:
    batches = [run(client, tmp_path / f"{i}.jsonl", [line(f"r{i}")]) for i in range(3)]
    listed = [batch.id for batch in client.batches.list(limit=2)]  # The client reads all pages.
    assert listed[:3] == [batch.id for batch in reversed(batches)]
    inputs = [file.id for file in client.files.list(purpose="batch", limit=2, order="asc")]
    assert [batch.input_file_id for batch in batches] == inputs[-3:]
    file = client.files.retrieve(batches[0].input_file_id)
    assert (file.filename, file.purpose, file.status) == ("0.jsonl", "batch", "processed")
    assert file.bytes == (tmp_path / "0.jsonl").stat().st_size
    assert file.expires_at is not None
    assert file.expires_at - file.created_at == 30 * 24 * 3600
    with capture_logs() as events:
        assert client.files.content(file.id).read() == (tmp_path / "0.jsonl").read_bytes()
        assert httpx.get(f"{client.base_url}files/{file.id}/content").status_code == 200
    assert "unhandled_exception" not in {event["event"] for event in events}
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_a_batch_is_cancelled(client: openai.OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    lines = [line(f"r{i}", max_tokens=400, ignore_eos=True) for i in range(100)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in lines))
    file = client.files.create(
        file=path, purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert file.expires_at == file.created_at + 3600
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    with pytest.raises(openai.ConflictError, match="cancel it first"):
        client.files.delete(file.id)
    batch = client.batches.cancel(batch.id)
    assert batch.status in ("cancelling", "cancelled")
    deadline = time.monotonic() + 60
    while batch.status == "cancelling":
        assert time.monotonic() < deadline
        time.sleep(0.02)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "cancelled"
    assert batch.request_counts is not None
    assert batch.request_counts.completed + batch.request_counts.failed == 100
    assert batch.error_file_id is not None
    entries = [json.loads(row) for row in client.files.content(batch.error_file_id).iter_lines()]
    assert {entry["error"]["code"] for entry in entries} == {"batch_cancelled"}
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)
