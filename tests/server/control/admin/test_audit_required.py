"""With `--audit-required`, an admin change without its record on the disk does not happen."""

import asyncio
import errno
import json
import resource
import signal
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from server.control.admin import audit as module
from server.control.admin.audit import Audit
from server.fleet.desired import DesiredState
from server.settings.sources import load_settings
from server.settings.types import SettingsError
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, eventually

FAILURES = "specgate_audit_write_failures_total"
SWITCH = ("POST", "/v1/switch_spec_method", {"proposer": "ngram", "reason": "nightly"})
CHANGES: list[tuple[str, str, dict[str, Any]]] = [
    SWITCH,
    ("POST", "/v1/switch_spec_method", {"proposer": "ngram", "mode": "drain"}),
    ("PUT", "/v1/spec_policy", {"policies": {"auto": {"min_gain": 0.5}}}),
    ("PUT", "/v1/spec_policy", {"rules": [{"name": "all", "use": {"proposer": "suffix"}}]}),
    ("POST", "/v1/load_proposer", {"name": "more", "method": "ngram"}),
    ("POST", "/v1/unload_proposer", {"name": "suffix"}),
    ("POST", "/v1/load_lora_adapter", {"lora_name": "sql", "lora_path": "FOLDER"}),
    ("POST", "/v1/unload_lora_adapter", {"lora_name": "old"}),
]
"""Every kind of change that is recorded."""


@contextmanager
def files_limited_to(size: int) -> Iterator[list[MutableMapping[str, Any]]]:
    """No file of this process grows beyond so many bytes: writes are cut there, and then fail.

    Gives the log, which is not written meanwhile.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with capture_logs() as logs:
            yield logs
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def failures(gateway: Gateway) -> tuple[float | None, float | None]:
    """Lines that could not be written: of intents, and of outcomes."""
    return gateway.sample(FAILURES, record="intent"), gateway.sample(FAILURES, record="outcome")


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """A folder with a LoRA adapter."""
    (folder := tmp_path / "adapter").mkdir()
    (folder / "adapter_config.json").write_text('{"r": 8, "peft_type": "LORA"}')
    (folder / "adapter_model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    return folder


async def state(gateway: Gateway) -> list[Any]:
    """What changes could change."""
    runtime = gateway.runtime
    return [
        runtime.switcher.active,
        runtime.switcher.busy,
        runtime.admission.slots.is_open,
        [info.name for info in await runtime.engine.proposers()],
        runtime.engine.lora_adapters,
        {info.name: dict(info.parameters) for info in runtime.engine.policies},
        [rule.name for rule in runtime.router.rules],
    ]


@pytest.mark.parametrize("required", [True, False])
async def test_on_a_full_disk_every_change_is_refused_if_its_record_is_required(
    start: StartGateway, adapter: Path, required: bool
) -> None:
    gateway = await start(
        audit=Audit("/dev/full", required=required),
        enable_lora=True,
        lora_modules={"old": str(adapter)},
        allowed_local_path=[str(adapter)],
    )
    for number, (method, path, body) in enumerate(CHANGES, 1):
        before = await state(gateway)
        if "lora_path" in body:
            body = {**body, "lora_path": str(adapter)}
        answer = await gateway.client.request(method, path, json=body)
        if not required:
            assert answer.status_code == 200, answer.text
            assert await state(gateway) != before, path
            continue
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (503, "audit_unavailable")
        assert "No space left on device" in error["message"]
        assert "retry-after" not in answer.headers
        assert await state(gateway) == before, path
        assert failures(gateway) == (number, number)


async def test_a_change_is_intended_before_it_happens_and_recorded_after(
    start: StartGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    gateway = await start(audit=Audit(str(path), required=True), admin_key=["sesame"])
    switch = gateway.engine.switch
    at_engine: list[dict[str, Any]] = []

    async def watched(*args: Any, **kwargs: Any) -> None:
        at_engine.extend(lines(path))
        await switch(*args, **kwargs)

    monkeypatch.setattr(gateway.engine, "switch", watched)
    headers = {"authorization": "Bearer sesame"}
    assert (await gateway.post(*SWITCH[1:], headers=headers)).status_code == 200
    intent, outcome = lines(path)
    assert at_engine == [intent]
    assert intent == {
        **{name: outcome[name] for name in ("when", "who", "peer", "what")},
        "change": {"spec_method": "ngram", "num_speculative_tokens": 5, "mode": "immediate"},
        "reason": "nightly",
        "outcome": "intended",
    }
    assert (outcome["outcome"], outcome["generation"]) == ("switched", 1)
    shown = (await gateway.client.get("/v1/spec_method", headers=headers)).json()["switches"]
    assert [record["outcome"] for record in shown] == ["switched"]
    # What is not valid is not intended.
    wrong = await gateway.post(SWITCH[1], {"proposer": "nope"}, headers=headers)
    assert wrong.status_code == 404
    assert len(lines(path)) == 2
    assert failures(gateway) == (0, 0)


async def test_of_refusals_in_a_row_the_first_is_logged(start: StartGateway) -> None:
    gateway = await start(audit=Audit("/dev/full", required=True))
    with capture_logs() as logs:
        for _ in range(3):
            assert (await gateway.post(*SWITCH[1:])).status_code == 503
    failed = [line for line in logs if line["event"] == "audit_log_failed"]
    assert [(line["record"], line["log_level"]) for line in failed] == [("intent", "error")]
    assert failures(gateway) == (3, 3)


async def test_without_the_setting_nothing_is_intended(start: StartGateway, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    gateway = await start(audit=Audit(str(path)))
    assert (await gateway.post(*SWITCH[1:])).status_code == 200
    assert [line["outcome"] for line in lines(path)] == ["switched"]


async def test_an_outcome_that_cannot_be_written_is_counted_and_logged(
    start: StartGateway, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    gateway = await start(audit=Audit(str(path), required=True))
    assert (await gateway.post(SWITCH[1], {"proposer": "suffix"})).status_code == 200
    size = path.stat().st_size
    intent = len(path.read_bytes().splitlines(keepends=True)[0])
    with files_limited_to(size + intent + 10) as logs:
        # There is room for the intent, and for ten bytes of the outcome.
        assert (await gateway.post(SWITCH[1], {"proposer": "ngram"})).status_code == 200
        assert failures(gateway) == (0, 1)
        refused = await gateway.post(SWITCH[1], {"proposer": None})
        assert refused.status_code == 503
        assert failures(gateway) == (1, 2)
    assert gateway.runtime.switcher.active.name == "ngram"
    failed = [line["record"] for line in logs if line["event"] == "audit_log_failed"]
    assert failed == ["outcome"]
    # With room again, lines are whole, and the cut one stands alone.
    assert (await gateway.post(SWITCH[1], {"proposer": None})).status_code == 200
    text = path.read_text().splitlines()
    assert [json.loads(line)["outcome"] for line in (*text[:3], *text[4:])] == [
        *("intended", "switched", "intended", "intended", "switched")
    ]
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        json.loads(text[3])


async def test_a_disk_that_does_not_answer_is_not_waited_for_without_end(
    start: StartGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = Audit(str(tmp_path / "audit.jsonl"), required=True)
    gateway = await start(audit=audit)
    hung = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang(_: int) -> None:
        asyncio.run_coroutine_threadsafe(hung.wait(), loop).result()

    monkeypatch.setattr(module, "_flush", hang)
    monkeypatch.setattr(module, "DISK_S", 0.1)
    switching = asyncio.create_task(gateway.post(*SWITCH[1:]))
    # The event loop serves meanwhile.
    assert (await gateway.complete(max_tokens=1)).status_code == 200
    answer = await switching
    hung.set()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "audit_unavailable")
    assert "more than 0.1 s" in answer.json()["error"]["message"]
    assert gateway.runtime.switcher.active.epoch == 0
    assert failures(gateway) == (1, 0)
    assert [record.outcome for record in gateway.state.audit.switches] == ["refused"]


async def test_a_disk_that_keeps_no_line_is_logged_once(
    start: StartGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start(audit=Audit(str(tmp_path / "audit.jsonl"), required=True))

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    flush = module._flush
    with capture_logs() as logs:
        for _ in range(3):
            monkeypatch.setattr(module, "_flush", fail)
            for _ in range(3):
                assert (await gateway.post(*SWITCH[1:])).status_code == 503
            monkeypatch.setattr(module, "_flush", flush)
            assert (await gateway.post(*SWITCH[1:])).status_code == 200
    assert [line["event"] for line in logs].count("audit_log_failed") == 3


async def test_a_fleets_state_waits_for_a_disk_with_room(
    start: StartGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.fleet.member.RETRY_S", 0.01)
    path = tmp_path / "audit.jsonl"
    gateway = await start(audit=Audit(str(path), required=True))
    active = gateway.runtime.switcher.active
    desired = DesiredState(1, "ngram", 5, {"auto": {"min_gain": 0.5}})
    with files_limited_to(0):
        state = await gateway.runtime.fleet.set(desired)
        assert state.fleet.lag is not None
        assert state.fleet.lag.code == "audit_unavailable"
        assert gateway.runtime.switcher.active == active
    await eventually(lambda: gateway.runtime.switcher.active.name == "ngram")
    assert {line["what"] for line in lines(path)} == {"spec_policy", "switch_spec_method"}


def test_the_setting_needs_a_file() -> None:
    with pytest.raises(SettingsError, match=r"^--audit-required: needs --audit-log"):
        load_settings(["--engine", "fake", "--audit-required"], {})
    given = ["--engine", "fake", "--audit-required", "--audit-log", "x"]
    assert load_settings(given, {}).audit_required
