"""Loads and unloads with names, paths and checkpoints that somebody made to do harm."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from demo import model_path
from engine_adapter.fake.engine import FakeEngine
from engine_adapter.proposers.checkpoint import Checkpoint
from server.control.admin.audit import Audit
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway

LOAD, UNLOAD = "/v1/load_proposer", "/v1/unload_proposer"

NAMES: list[Any] = [
    *("\ud800", "a\ud800", "a\nb", "a\x1b[2J", "a\u2028b", "a\x00", "a b", "../a", "a/b", "ü"),
    *("-a", ".a", "", " ", "a" * 65, "a" * 10_000_000, "a\n"),
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:12]))
@pytest.mark.parametrize("path", [LOAD, UNLOAD])
async def test_a_name_is_checked_before_anything_is_recorded(
    gateway: Gateway, path: str, name: str
) -> None:
    body = {"name": name, "method": "ngram"} if path == LOAD else {"name": name}
    with capture_logs() as logs:
        response = await gateway.post(path, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "name"
    assert len(response.content) < 1000
    assert "admin_change" not in {log["event"] for log in logs}
    shown = await gateway.client.get("/v1/proposers")
    assert shown.status_code == 200
    assert shown.json()["changes"] == []


FIELDS: list[dict[str, Any]] = [
    {"method": "x" * 5_000_000},
    {"method": ["x"] * 500_000},
    {"method": "ngram", "num_speculative_tokens": "9" * 5_000_000},
    {"method": "ngram", "prompt_lookup_max": "x" * 5_000_000},
    {"method": "ngram", "x" * 5_000_000: 1},
    {"method": "medusa", "model": "x" * 5_000_000},
    {"method": "medusa", "model": {"x": "y" * 5_000_000}},
    {"method": "medusa", "model": "a\ud800"},
    {"method": "medusa", "model": "a\x00"},
    {"method": "cascade", "members": ["x" * 5_000_000, "ngram"]},
    {"method": "cascade", "members": "x" * 5_000_000},
    {"method": "suffix", "max_spec_factor": "\ud800"},
]


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: ascii(sorted(map(len, fields))))
async def test_a_refusal_is_small_and_leaves_a_small_record(
    gateway: Gateway, fields: dict[str, Any]
) -> None:
    with capture_logs() as logs:
        response = await gateway.post(LOAD, {"name": "lookup", **fields})
    assert response.status_code == 400, response.text
    assert len(response.content) < 2000
    assert len(repr(logs)) < 5000
    shown = await gateway.client.get("/v1/proposers")
    assert shown.status_code == 200
    (change,) = shown.json()["changes"]
    is_allowed = response.json()["error"]["code"] != "model_not_allowed"
    assert change["outcome"] == ("failed" if is_allowed else "refused")
    assert len(change["error"]) <= 500


@pytest.mark.parametrize("path", ["/v1/switch_spec_method", "/v1/spec_policy"])
async def test_a_reason_is_text_that_can_be_shown(gateway: Gateway, path: str) -> None:
    bodies = {
        "/v1/switch_spec_method": {"speculative_model": "ngram", "reason": "\ud800"},
        "/v1/spec_policy": {"rules": [], "reason": "\ud800"},
    }
    method = "PUT" if path == "/v1/spec_policy" else "POST"
    headers = {"content-type": "application/json"}
    response = await gateway.client.request(
        method, path, content=json.dumps(bodies[path]), headers=headers
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "reason"
    shown = await gateway.client.get(path.replace("switch_spec_method", "spec_method"))
    assert shown.status_code == 200


async def test_no_field_runs_the_code_of_a_checkpoint(gateway: Gateway) -> None:
    for name in ("trust_remote_code", "code_revision", "load_format", "tokenizer", "hf_overrides"):
        for method in ("ngram", "medusa", "draft_model"):
            body = {"name": "x", "method": method, "model": "org/x", name: True}
            response = await gateway.post(LOAD, body)
            assert response.status_code == 400
    body = {"lora_name": "x", "lora_path": "a", "trust_remote_code": True}
    response = await gateway.post("/v1/load_lora_adapter", body)
    assert response.json()["error"]["param"] == "trust_remote_code"


class Marker:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake engine reads the weights' header, as the real one does before it loads them."""
    load = FakeEngine.load_proposer

    async def read_first(self: FakeEngine, fields: Any) -> Any:
        spec = self._proposer_registry.check_load(fields)
        try:
            _ = Checkpoint(str(spec.model)).shapes
        except ValueError as error:
            from engine_adapter.seam.errors import EngineConfigError

            raise EngineConfigError("proposer", str(error), "model") from error
        return await load(self, fields)

    monkeypatch.setattr(FakeEngine, "load_proposer", read_first)


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize("protocol", [0, 2, 5])
async def test_a_checkpoint_that_runs_code_is_refused_and_the_code_does_not_run(
    start: StartGateway, tmp_path: Path, protocol: int
) -> None:
    gateway = await start(allowed_local_path=[str(tmp_path)])
    (tmp_path / "config.json").write_text("{}")
    ran = tmp_path / "ran"
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Marker(ran)}, protocol))
    body = {"name": "heads", "method": "medusa", "model": str(tmp_path)}
    response = await gateway.post(LOAD, body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "model")
    assert not ran.exists()
    # It would have run: this is what opening it without care does.
    with (tmp_path / "pytorch_model.bin").open("rb") as file:
        pickle.load(file)
    assert ran.exists()


@pytest.mark.usefixtures("reading")
async def test_a_folder_outside_the_allowed_ones_is_refused_however_it_is_written(
    start: StartGateway, tmp_path: Path
) -> None:
    allowed, outside = tmp_path / "allowed", tmp_path / "outside"
    for folder in (allowed, outside):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    (allowed / "link").symlink_to(outside)
    gateway = await start(allowed_local_path=[str(allowed)])
    messages = set()
    for path in (
        *(str(outside), f"{allowed}/../outside", f"{allowed}/link", f"{allowed}/link/../outside"),
        *(str(tmp_path / "missing"), "/etc", "/etc/shadow", "~root", "../../..", "someone/heads"),
    ):
        response = await gateway.post(LOAD, {"name": "heads", "method": "medusa", "model": path})
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "model_not_allowed"), path
        messages.add(error["message"])
    assert len(messages) == 1, "the messages tell what exists"
    # The allowed folder is read: it has no weights.
    response = await gateway.post(
        LOAD, {"name": "heads", "method": "medusa", "model": str(allowed)}
    )
    assert "there is none of" in response.json()["error"]["message"]


async def test_the_models_of_the_settings_may_be_loaded(start: StartGateway) -> None:
    heads = {"name": "heads", "method": "medusa", "model": "org/heads"}
    gateway = await start(model=str(model_path()), proposer=[heads], spec_method="none")
    assert (await gateway.post(UNLOAD, {"name": "heads"})).status_code == 200
    assert (await gateway.post(LOAD, heads)).status_code == 200
    other = await gateway.post(LOAD, {**heads, "name": "other", "model": "org/other"})
    assert other.json()["error"]["code"] == "model_not_allowed"


def test_only_its_owner_can_read_a_new_audit_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    Audit(str(path)).close()
    assert path.stat().st_mode & 0o777 == 0o600
