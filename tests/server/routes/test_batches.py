"""`/v1/batches`: owners, errors per line, cancel, expiry, restarts, and what it gives way to."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.batches.files import OUTPUT, FileStore, StoredFile
from server.batches.folder import Folder
from server.settings.types import SettingError
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, build, eventually

TEAMS: dict[str, Any] = {"named_api_key": {"a": "sk-a", "b": "sk-b"}}
A, B = ({"authorization": f"Bearer sk-{name}"} for name in "ab")
SLOW = {"fake_step_ms": 5, "fake_acceptance": 0.0}
ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "files")


def line(custom_id: Any, url: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    body = {"prompt": f"def {custom_id}(", "max_tokens": 5, **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def long_lines(count: int, tokens: int = 40) -> list[dict[str, Any]]:
    return [line(f"r{i}", max_tokens=tokens, ignore_eos=True) for i in range(count)]


def jsonl(lines: list[Any]) -> bytes:
    texts = (row if isinstance(row, bytes) else json.dumps(row).encode() for row in lines)
    return b"".join(text + b"\n" for text in texts)


def content_bytes(folder: str) -> int:
    """The bytes of all contents in a folder."""
    paths = Path(folder, "files").iterdir()
    return sum(path.stat().st_size for path in paths if not path.suffix)


async def create(
    gateway: Gateway, lines: list[Any], headers: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    upload = await gateway.client.post(
        *("/v1/files",),
        data={"purpose": "batch"},
        files={"file": ("in.jsonl", jsonl(lines))},
        headers=headers,
    )
    body = {
        "input_file_id": upload.json()["id"],
        "endpoint": "/v1/completions",
        "completion_window": "24h",
        **more,
    }
    response = await gateway.client.post("/v1/batches", json=body, headers=headers)
    assert response.status_code == 200, response.text
    batch: dict[str, Any] = response.json()
    return batch


async def retrieve(
    gateway: Gateway, batch: dict[str, Any], headers: dict[str, str] | None = None
) -> dict[str, Any]:
    response = await gateway.client.get(f"/v1/batches/{batch['id']}", headers=headers)
    answer: dict[str, Any] = response.json()
    return answer


async def end(
    gateway: Gateway, batch: dict[str, Any], headers: dict[str, str] | None = None
) -> dict[str, Any]:
    return await until(gateway, batch, lambda shown: shown["status"] in ENDED, headers)


async def until(
    gateway: Gateway,
    batch: dict[str, Any],
    condition: Callable[[dict[str, Any]], bool],
    headers: dict[str, str] | None = None,
) -> dict[str, Any]:
    """The batch, once the condition holds."""
    deadline = time.monotonic() + 120
    shown = await retrieve(gateway, batch, headers)
    while not condition(shown):
        assert time.monotonic() < deadline, shown
        await asyncio.sleep(0.01)
        shown = await retrieve(gateway, batch, headers)
    return shown


async def entries(
    gateway: Gateway, file_id: str | None, headers: dict[str, str] | None = None
) -> dict[str | None, dict[str, Any]]:
    if file_id is None:
        return {}
    content = await gateway.client.get(f"/v1/files/{file_id}/content", headers=headers)
    rows = [json.loads(row) for row in content.text.splitlines()]
    assert len({row["id"] for row in rows}) == len(rows)
    by_id = {row["custom_id"]: row for row in rows}
    assert len(by_id) == len(rows)
    return by_id


async def test_each_line_has_one_entry_in_the_right_file(start: StartGateway, folder: str) -> None:
    gateway = await start(files_dir=folder, max_body_bytes=1000, max_body_values=50)
    lines = [
        line("good"),
        b"",
        b"{broken",
        line("refused", temperature=9),
        line("elsewhere", "/v1/chat/completions"),
        line("stream", stream=True),
        line("long", prompt="x" * 1000),
        line("values", stop=["a"] * 60),
        line("x" * 600, prompt="x"),
        line("last", spec_decode={"proposer": "suffix"}),
    ]
    batch = await create(gateway, lines, metadata={"a": "b"})
    assert (batch["status"], batch["request_counts"]["total"]) == ("validating", 0)
    assert batch["expires_at"] - batch["created_at"] == 24 * 3600
    ended = await end(gateway, batch)
    assert ended["status"] == "completed"
    assert ended["request_counts"] == {"total": 9, "completed": 2, "failed": 7}
    assert ended["metadata"] == {"a": "b"}
    times = [ended[f"{name}_at"] for name in ("created", "in_progress", "finalizing", "completed")]
    assert times == sorted(times)
    assert ended["failed_at"] is ended["cancelled_at"] is ended["errors"] is None
    answers = await entries(gateway, ended["output_file_id"])
    assert set(answers) == {"good", "last"}
    body = answers["last"]["response"]["body"]
    assert body["metrics"]["speculative_decoding"]["proposer"] == "suffix"
    assert ended["usage"]["output_tokens"] == 10
    content = await gateway.client.get(f"/v1/files/{ended['error_file_id']}/content")
    failures = [json.loads(row) for row in content.text.splitlines()]
    assert len(failures) == 7
    (refusal,) = [row for row in failures if row["response"] is not None]
    assert (refusal["custom_id"], refusal["response"]["status_code"]) == ("refused", 400)
    messages = {row["error"]["line"]: row["error"]["message"] for row in failures if row["error"]}
    assert messages[5] == "line 5: url must be /v1/completions"
    assert messages[7] == "line 7: the line is longer than 1000 bytes"
    assert messages[8] == "line 8: the line has more than 50 values"
    assert "the maximum is 512" in messages[9]
    names = {
        f["purpose"]: f["filename"] for f in (await gateway.client.get("/v1/files")).json()["data"]
    }
    assert names["batch_output"].startswith(batch["id"])
    assert gateway.sample("specgate_batch_requests_total", outcome="completed") == 2
    assert gateway.sample("specgate_batch_requests_total", outcome="failed") == 7
    assert gateway.sample("specgate_batches_total", status="completed") == 1


@pytest.mark.parametrize(
    ("lines", "code", "fault_line"),
    [
        ([line("a"), line("b"), line("a")], "duplicate_custom_id", 3),
        ([], "empty_file", None),
        ([line(f"{i}") for i in range(4)], "too_many_requests", None),
    ],
)
async def test_a_file_that_cannot_be_used_fails_the_batch(
    start: StartGateway, folder: str, lines: list[Any], code: str, fault_line: int | None
) -> None:
    gateway = await start(files_dir=folder, max_batch_requests=3)
    ended = await end(gateway, await create(gateway, lines))
    assert ended["status"] == "failed"
    (fault,) = ended["errors"]["data"]
    assert (fault["code"], fault["line"]) == (code, fault_line)
    assert folder not in fault["message"]
    assert ended["output_file_id"] is ended["error_file_id"] is None
    assert gateway.state.enabled_batches().files.shelf("").num_pending == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("endpoint", "/v1/embeddings"),
        ("completion_window", "1h"),
        ("metadata", {"a": "b" * 600}),
        ("output_expires_after", {"anchor": "created_at", "seconds": 60}),
        ("input_file_id", 7),
        ("more", 1),
    ],
)
async def test_a_wrong_body_is_refused_by_name(
    start: StartGateway, folder: str, field: str, value: Any
) -> None:
    gateway = await start(files_dir=folder)
    body = {"input_file_id": "x", "endpoint": "/v1/completions", "completion_window": "24h"}
    response = await gateway.client.post("/v1/batches", json={**body, field: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(field)


async def test_a_key_never_sees_anothers_batches(start: StartGateway, folder: str) -> None:
    gateway = await start(files_dir=folder, engine_args=SLOW, **TEAMS)
    batch = await create(gateway, long_lines(5), A)
    for method, ending in (("GET", ""), ("POST", "/cancel")):
        path = f"/v1/batches/{batch['id']}{ending}"
        response = await gateway.client.request(method, path, headers=B)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "batch_not_found")
    assert (await gateway.client.get("/v1/batches", headers=B)).json()["data"] == []
    ended = await end(gateway, batch, A)
    content = f"/v1/files/{ended['output_file_id']}/content"
    assert (await gateway.client.get(content, headers=B)).status_code == 404
    assert len(await entries(gateway, ended["output_file_id"], A)) == 5
    # The tokens are those of the key.
    assert gateway.sample("specgate_key_generated_tokens_total", api_key="a") == 5 * 40
    assert gateway.sample("specgate_key_generated_tokens_total", api_key="b") == 0


async def test_a_key_has_few_unfinished_batches(start: StartGateway, folder: str) -> None:
    gateway = await start(files_dir=folder, engine_args=SLOW, max_key_batches=1, **TEAMS)
    batch = await create(gateway, long_lines(20), A)
    body = {
        "input_file_id": batch["input_file_id"],
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    }
    refusal = await gateway.client.post("/v1/batches", json=body, headers=A)
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (429, "batch_limit_exceeded")
    assert gateway.sample("specgate_unfinished_batches") == 1
    await end(gateway, await create(gateway, [line("a")], B), B)
    await gateway.client.post(f"/v1/batches/{batch['id']}/cancel", headers=A)
    await end(gateway, batch, A)
    assert (await gateway.client.post("/v1/batches", json=body, headers=A)).status_code == 200


async def test_a_cancel_keeps_what_is_answered(start: StartGateway, folder: str) -> None:
    gateway = await start(files_dir=folder, engine_args=SLOW, max_num_seqs=4)
    batch, waiting = [await create(gateway, long_lines(30)) for _ in range(2)]
    await until(gateway, batch, lambda shown: shown["request_counts"]["completed"] > 0)
    assert (await retrieve(gateway, waiting))["status"] == "validating"
    for each in (batch, waiting):
        await gateway.client.post(f"/v1/batches/{each['id']}/cancel")
    ended = await end(gateway, batch)
    counts = ended["request_counts"]
    assert (ended["status"], counts["completed"] + counts["failed"]) == ("cancelled", 30)
    assert 0 < counts["completed"] < 30
    assert len(await entries(gateway, ended["output_file_id"])) == counts["completed"]
    errors = await entries(gateway, ended["error_file_id"])
    assert len(errors) == counts["failed"]
    assert {entry["error"]["code"] for entry in errors.values()} == {"batch_cancelled"}
    ended_later = await end(gateway, waiting)
    assert ended_later["request_counts"] == {"total": 30, "completed": 0, "failed": 30}
    await eventually(lambda: gateway.engine.num_running == 0)


async def test_a_batch_ends_at_its_time(
    start: StartGateway, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start(files_dir=folder, engine_args=SLOW, max_num_seqs=4)
    monkeypatch.setattr("server.batches.batch.WINDOW_S", 2)
    ended = await end(gateway, await create(gateway, long_lines(90)))
    counts = ended["request_counts"]
    assert ended["status"] == "expired"
    assert ended["expired_at"] >= ended["expires_at"]
    assert counts["completed"] + counts["failed"] == 90
    assert counts["completed"] > 0
    errors = await entries(gateway, ended["error_file_id"])
    assert {entry["error"]["code"] for entry in errors.values()} == {"batch_expired"}


async def test_a_batch_continues_after_a_restart(start: StartGateway, folder: str) -> None:
    first = await start(files_dir=folder, engine_args=SLOW, max_num_seqs=4)
    batch = await create(
        first,
        [*long_lines(30), b"{broken"],
        output_expires_after={"anchor": "created_at", "seconds": 3600},
    )
    await until(first, batch, lambda shown: shown["request_counts"]["completed"] >= 3)
    await first.state.enabled_batches().close()
    before = await retrieve(first, batch)
    assert before["status"] == "in_progress"
    answered = before["request_counts"]["completed"]
    assert 3 <= answered < 30
    unseen = (await first.client.get("/v1/files", params={"purpose": "batch_output"})).json()
    assert unseen["data"] == []
    second = await start(files_dir=folder)
    ended = await end(second, batch)
    assert ended["status"] == "completed"
    assert ended["request_counts"] == {"total": 31, "completed": 30, "failed": 1}
    answers = await entries(second, ended["output_file_id"])
    assert set(answers) == {f"r{i}" for i in range(30)}
    assert ended["usage"]["output_tokens"] == 30 * 40
    assert second.sample("specgate_batch_requests_total", outcome="completed") == 30 - answered
    file = (await second.client.get(f"/v1/files/{ended['output_file_id']}")).json()
    assert file["expires_at"] - file["created_at"] == 3600
    files = second.state.enabled_batches().files
    num_bytes = content_bytes(folder)
    assert files.shelf("").num_bytes == num_bytes
    await second.state.enabled_batches().close()
    third = await start(files_dir=folder)
    assert await retrieve(third, batch) == ended
    assert third.state.enabled_batches().files.num_bytes == num_bytes


async def test_a_batch_of_a_key_that_is_gone_waits(start: StartGateway, folder: str) -> None:
    first = await start(files_dir=folder, engine_args=SLOW, **TEAMS)
    batch = await create(first, long_lines(30), A)
    await first.state.enabled_batches().close()
    second = await start(files_dir=folder, named_api_key={"b": "sk-b"})
    await end(second, await create(second, [line("a")], B), B)
    assert second.sample("specgate_unfinished_batches") == 1
    assert second.sample("specgate_batch_requests_total", outcome="completed") == 1
    await second.state.enabled_batches().close()
    third = await start(files_dir=folder, **TEAMS)
    assert (await end(third, batch, A))["request_counts"]["completed"] == 30


async def test_a_quota_of_bytes_ends_a_batch_and_keeps_what_is_answered(
    start: StartGateway, folder: str
) -> None:
    gateway = await start(files_dir=folder, max_key_file_bytes=20_000)
    ended = await end(gateway, await create(gateway, [line(f"r{i}") for i in range(100)]))
    assert ended["status"] == "failed"
    assert ended["errors"]["data"][0]["code"] == "file_quota_exceeded"
    completed = ended["request_counts"]["completed"]
    assert 0 < completed < 100
    assert len(await entries(gateway, ended["output_file_id"])) == completed


async def test_a_disk_that_is_full_at_the_end_loses_no_answer(
    start: StartGateway, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.batches.worker.TICK_S", 0.05)
    add, num_refused = FileStore.add, 0

    async def refuse(store: FileStore, file: StoredFile) -> None:
        nonlocal num_refused
        if file.purpose == OUTPUT and num_refused < 3:
            num_refused += 1
            raise OSError(28, "No space left on device")
        await add(store, file)

    monkeypatch.setattr(FileStore, "add", refuse)
    gateway = await start(files_dir=folder)
    ended = await end(gateway, await create(gateway, [line(f"r{i}") for i in range(5)]))
    assert (ended["status"], num_refused) == ("completed", 3)
    assert len(await entries(gateway, ended["output_file_id"])) == 5
    assert gateway.sample("specgate_file_bytes") == content_bytes(folder)


async def test_an_engine_that_dies_loses_no_line(start: StartGateway, folder: str) -> None:
    gateway = await start(
        files_dir=folder,
        engine_args={"fake_die_after_steps": 40, "fake_step_ms": 1},
        engine_restart_delay_s=0.01,
    )
    ended = await end(gateway, await create(gateway, long_lines(8, 30)))
    assert ended["status"] == "completed"
    assert ended["request_counts"]["completed"] == 8


async def test_a_batch_gives_way_to_other_requests(start: StartGateway, folder: str) -> None:
    gateway = await start(files_dir=folder, engine_args=SLOW, max_num_seqs=4, max_queued_requests=3)
    batch = await create(gateway, long_lines(40, 100))
    slots = gateway.runtime.admission.slots
    # A quarter of the rows stays free.
    await eventually(lambda: slots.in_use == 3)
    for _ in range(3):
        assert (await gateway.complete(max_tokens=1)).status_code == 200
        assert slots.in_use <= 4
    # Lines wait outside of the queue.
    assert gateway.runtime.admission.num_queued == 0
    others = [
        asyncio.create_task(gateway.complete(max_tokens=60, ignore_eos=True)) for _ in range(5)
    ]
    answers = await asyncio.gather(*others)
    assert [answer.status_code for answer in answers] == [200] * 5
    assert (await retrieve(gateway, batch))["status"] == "in_progress"
    # Only requests of clients have been waiting in the queue.
    assert gateway.sample("specgate_queue_seconds_count") == 8
    await gateway.client.post(f"/v1/batches/{batch['id']}/cancel")
    await end(gateway, batch)


async def test_a_drain_that_ends_requests_loses_no_line(start: StartGateway, folder: str) -> None:
    gateway = await start(files_dir=folder, engine_args=SLOW, max_num_seqs=4)
    batch = await create(gateway, long_lines(12))
    await eventually(lambda: gateway.engine.num_running == 3)
    drain = {"proposer": "ngram", "mode": "drain", "timeout_s": 0.05, "on_timeout": "abort"}
    assert (await gateway.post("/v1/switch_spec_method", drain)).status_code == 200
    ended = await end(gateway, batch)
    assert ended["request_counts"] == {"total": 12, "completed": 12, "failed": 0}


async def test_no_limit_of_time_or_of_a_key_ends_a_line(start: StartGateway, folder: str) -> None:
    limits = {
        "queue_timeout_s": 0.001,
        "request_timeout_s": 0.001,
        "first_token_timeout_s": 0.001,
        "max_key_requests_per_minute": 2,
        "slow_request_s": 0.0001,
    }
    gateway = await start(files_dir=folder, max_num_seqs=1, engine_args=SLOW, **limits)
    ended = await end(gateway, await create(gateway, long_lines(4, 5)))
    assert ended["request_counts"]["completed"] == 4


async def test_lines_are_not_requests_over_http(start: StartGateway, folder: str) -> None:
    gateway = await start(files_dir=folder)
    await end(gateway, await create(gateway, [line("a")]))
    labels = {"route": "/v1/completions", "method": "POST", "status": "200"}
    assert gateway.sample("specgate_http_requests_total", **labels) is None


def test_a_folder_in_use_or_that_cannot_be_used_is_a_wrong_setting(folder: str) -> None:
    second = Folder(folder)
    with pytest.raises(SettingError, match="another server uses it"):
        build(files_dir=folder)
    second.close()
    with pytest.raises(SettingError, match="No such file"):
        build(files_dir=f"{folder}/missing/below")
