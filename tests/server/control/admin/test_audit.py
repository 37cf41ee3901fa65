"""Every admin change is recorded in memory and in the file, and a failed record fails no change."""

import asyncio
import hashlib
import json
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from server.commands.serve import open_audit
from server.control.admin.audit import REMEMBERED, Audit
from server.control.records import SpecMethodBody, SwitchRecord
from server.control.types import SwitchMode, SwitchOutcome
from server.settings import Settings
from server.settings.types import SettingsError
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, eventually

SWITCH = "/v1/switch_spec_method"
NONE = SpecMethodBody("none", 0)


def record(generation: int = 1) -> SwitchRecord:
    return SwitchRecord(
        when=1.5,
        who="loopback",
        peer="127.0.0.1",
        what="switch_spec_method",
        previous=NONE,
        to=SpecMethodBody("ngram", 4),
        mode=SwitchMode.DRAIN,
        reason='a "reason"\nof two lines',
        outcome=SwitchOutcome.SWITCHED,
        error=None,
        generation=generation,
        fleet_generation=None,
        in_flight=0,
        aborted=0,
        took_ms=2.5,
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_record_is_one_line_of_json(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text('{"kept": true}\n')
    audit = Audit(str(path))
    audit.add(record())
    # Written immediately, not at the end.
    assert lines(path) == [
        {"kept": True},
        {
            "when": "1970-01-01T00:00:01.500Z",
            "who": "loopback",
            "peer": "127.0.0.1",
            "what": "switch_spec_method",
            "from": {"spec_method": "none", "num_speculative_tokens": 0},
            "to": {"spec_method": "ngram", "num_speculative_tokens": 4},
            "mode": "drain",
            "reason": 'a "reason"\nof two lines',
            "outcome": "switched",
            "error": None,
            "generation": 1,
            "fleet_generation": None,
            "in_flight": 0,
            "aborted": 0,
            "took_ms": 2.5,
        },
    ]
    audit.close()
    audit.close()


def test_memory_keeps_the_last_hundred_and_the_file_all(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with closing(Audit(str(path))) as audit:
        for generation in range(REMEMBERED + 5):
            audit.add(record(generation))
    assert [r.generation for r in audit.switches] == list(range(REMEMBERED + 4, 4, -1))
    assert [line["generation"] for line in lines(path)] == list(range(REMEMBERED + 5))


def test_a_write_error_is_logged_once_and_fails_no_switch() -> None:
    with closing(Audit("/dev/full")) as audit, capture_logs() as logs:
        for generation in range(3):
            audit.add(record(generation))
    failures = [line for line in logs if line["event"] == "audit_log_failed"]
    assert len(failures) == 1
    assert failures[0]["path"] == "/dev/full"
    assert len(audit.switches) == 3


@pytest.mark.parametrize("name", ["", "missing/audit.jsonl"])
def test_a_path_that_cannot_be_opened_is_an_invalid_setting(tmp_path: Path, name: str) -> None:
    settings = Settings(model="org/m", audit_log=str(tmp_path / name))
    with pytest.raises(SettingsError, match=r"^--audit-log: cannot write .*"):
        open_audit(settings)


def test_without_a_path_there_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    audit = open_audit(Settings(model="org/m"))
    audit.add(record())
    audit.close()
    assert audit.switches == (record(),)
    assert list(tmp_path.iterdir()) == []


async def test_a_switch_over_http_is_recorded_with_its_caller(
    start: StartGateway, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    gateway = await start(audit=Audit(str(path)), admin_key=["sesame"])
    headers = {"authorization": "Bearer sesame"}
    body = {"proposer": "ngram", "reason": "nightly", "mode": "new_requests"}
    before = datetime.now(UTC)
    assert (await gateway.post(SWITCH, body, headers=headers)).status_code == 200
    (line,) = lines(path)
    assert line["who"] == f"key:{hashlib.sha256(b'sesame').hexdigest()[:8]}"
    assert line["peer"] == "127.0.0.1"
    assert line["from"]["spec_method"] == "draft"
    assert line["to"] == {"spec_method": "ngram", "num_speculative_tokens": 5}
    assert (line["mode"], line["reason"], line["outcome"]) == (
        "new_requests",
        "nightly",
        "switched",
    )
    assert (line["error"], line["generation"], line["in_flight"]) == (None, 1, 0)
    assert abs((datetime.fromisoformat(line["when"]) - before).total_seconds()) < 60
    shown = (await gateway.client.get("/v1/spec_method", headers=headers)).json()["switches"]
    assert [{**one, "when": line["when"]} for one in shown] == [line]
    assert "sesame" not in path.read_text()


async def test_switches_that_did_not_happen_are_recorded(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 2, "fake_die_at_call": "switch"})
    ahead = gateway.exchange(
        "/v1/completions", {"prompt": "a", "max_tokens": 2000, "ignore_eos": True}
    )
    task = ahead.begin()
    await eventually(lambda: gateway.engine.num_running == 1, 20)
    drain = {"proposer": "ngram", "mode": "drain"}
    draining = asyncio.create_task(gateway.post(SWITCH, {**drain, "timeout_s": 0.2}))
    await eventually(lambda: not gateway.runtime.admission.slots.is_open)
    assert (await gateway.post(SWITCH, {"proposer": None})).status_code == 409
    assert (await draining).status_code == 504
    assert (await gateway.post(SWITCH, {"proposer": "suffix"})).status_code == 503
    ahead.leave()
    await task
    failed, timed_out, refused = gateway.state.audit.switches
    assert (failed.outcome, failed.to.spec_method, failed.generation) == ("failed", "suffix", 1)
    assert "fake_die_at_call" in (failed.error or "")
    assert (timed_out.outcome, timed_out.in_flight) == ("timed_out", 1)
    assert timed_out.generation is None
    assert timed_out.error == "1 admitted request did not end within 0.2 s"
    assert (refused.outcome, refused.to) == ("refused", NONE)
    assert refused.error == "another switch has not ended yet"
    assert (refused.who, refused.peer) == ("loopback", "127.0.0.1")


async def test_an_attempt_to_load_what_is_not_allowed_is_refused_and_has_not_failed(
    start: StartGateway, tmp_path: Path
) -> None:
    (allowed := tmp_path / "allowed").mkdir()
    path = tmp_path / "audit.jsonl"
    gateway = await start(
        audit=Audit(str(path)), allowed_local_path=[str(allowed)], enable_lora=True
    )
    for model, method in (("/etc", "medusa"), (str(allowed), "unknown")):
        heads = {"name": "heads", "method": method, "model": model}
        assert (await gateway.post("/v1/load_proposer", heads)).status_code == 400
        adapter = {"lora_name": "sql", "lora_path": model}
        assert (await gateway.post("/v1/load_lora_adapter", adapter)).status_code == 400
    outcomes = [(line["what"], line["outcome"]) for line in lines(path)]
    assert outcomes == [
        (what, outcome)
        for outcome in ("refused", "failed")
        for what in ("load_proposer", "load_lora_adapter")
    ]


async def test_a_full_disk_does_not_fail_a_switch(start: StartGateway) -> None:
    gateway: Gateway = await start(audit=Audit("/dev/full"))
    assert (await gateway.post(SWITCH, {"proposer": "ngram"})).status_code == 200
