"""LoRA adapters over HTTP: loaded, selected by name, shown, unloaded."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from demo import model_path
from server.text import TOO_LONG
from tests.engine_adapter.lora import cached_adapter
from tests.server.conftest import StartGateway
from tests.server.gateway import MODEL, Gateway, eventually

NEW = "/v1/load_lora_adapter"
GONE = "/v1/unload_lora_adapter"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A folder that the fake engine accepts as an adapter."""
    (tmp_path / "adapter_config.json").write_text("{}")
    return str(tmp_path)


@pytest.fixture
async def lora(start: StartGateway, folder: str) -> Gateway:
    """A gateway with the adapter `mine`."""
    modules = [f"mine={folder}"]
    return await start(enable_lora=True, lora_modules=modules, allowed_hub_id=["a/b"])


async def text(gateway: Gateway, model: str | None) -> str:
    response = await gateway.complete(model=model, max_tokens=12, temperature=0)
    assert response.status_code == 200, response.text
    assert response.json()["model"] == (model or MODEL)
    return str(response.json()["choices"][0]["text"])


async def test_an_adapter_is_selected_by_its_name(lora: Gateway) -> None:
    assert await text(lora, "mine") != await text(lora, MODEL) == await text(lora, None)
    chat = await lora.chat(model="mine", max_tokens=4)
    assert chat.json()["model"] == "mine"
    counted = await lora.post("/tokenize", {"prompt": "a", "model": "mine"})
    assert counted.status_code == 200


async def test_adapters_are_listed_with_their_parent(lora: Gateway, folder: str) -> None:
    target, mine = (await lora.client.get("/v1/models")).json()["data"]
    assert (target["id"], target["parent"]) == (MODEL, None)
    assert (mine["id"], mine["parent"], mine["root"]) == ("mine", MODEL, folder)
    assert (await lora.client.get("/v1/models/mine")).json() == mine


async def test_an_adapter_is_loaded_and_unloaded_while_serving(lora: Gateway, folder: str) -> None:
    assert (await lora.complete(model="other")).status_code == 404
    loaded = await lora.post(NEW, {"lora_name": "other", "lora_path": folder})
    assert loaded.status_code == 200, loaded.text
    assert loaded.json()["id"] == "other"
    assert await text(lora, "other") != await text(lora, "mine")
    unloaded = await lora.post(GONE, {"lora_name": "other"})
    assert unloaded.json() == {"id": "other", "object": "model", "deleted": True}
    error = (await lora.complete(model="other")).json()["error"]
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert MODEL in error["message"]
    assert "mine" in error["message"]


async def test_an_adapter_is_loaded_by_its_id_on_the_hub(
    lora: Gateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    snapshot = cached_adapter(monkeypatch, tmp_path / "cache", "a/b")
    loaded = await lora.post(NEW, {"lora_name": "hub", "lora_path": "a/b"})
    assert (loaded.status_code, loaded.json()["root"]) == (200, "a/b")
    (found,) = (one for one in lora.engine.lora_adapters if one.name == "hub")
    assert found.folder == str(snapshot)
    assert await text(lora, "hub") != await text(lora, "mine")


@pytest.mark.parametrize("missing", ["everything", "adapter_model.safetensors"])
async def test_an_adapter_that_the_hub_does_not_give_is_refused(
    lora: Gateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str
) -> None:
    name = "else/where" if missing == "everything" else "a/b"
    snapshot = cached_adapter(monkeypatch, tmp_path / "cache", name)
    if missing != "everything":
        (snapshot / missing).unlink()
        (snapshot / "adapter_model.bin").touch()
    response = await lora.post(NEW, {"lora_name": "hub", "lora_path": "a/b"})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "lora_path")
    assert "'a/b'" in error["message"]
    assert [adapter.name for adapter in lora.engine.lora_adapters] == ["mine"]


REFUSED: list[tuple[str, dict[str, Any], int, str | None, str | None]] = [
    (NEW, {"lora_name": "mine", "lora_path": "a/b"}, 409, "lora_name", "adapter_exists"),
    (NEW, {"lora_name": MODEL, "lora_path": "a/b"}, 409, "lora_name", "adapter_exists"),
    (NEW, {"lora_name": "x", "lora_path": str(model_path())}, 400, "lora_path", None),
    (NEW, {"lora_name": "x", "lora_path": "."}, 400, "lora_path", "model_not_allowed"),
    (NEW, {"lora_name": "x", "lora_path": "a/c"}, 400, "lora_path", "model_not_allowed"),
    (NEW, {"lora_name": "x", "lora_path": "/no/folder"}, 400, "lora_path", "model_not_allowed"),
    (NEW, {"lora_name": "x", "lora_path": "0" * 4096}, 400, "lora_path", "model_not_allowed"),
    (NEW, {"lora_name": "x"}, 400, "lora_path", "missing_required_parameter"),
    (NEW, {"lora_name": "", "lora_path": "a"}, 400, "lora_name", None),
    (NEW, {"lora_name": "\ud800", "lora_path": "a"}, 400, "lora_name", None),
    (NEW, {"lora_name": "a\nb", "lora_path": "a"}, 400, "lora_name", None),
    (NEW, {"lora_name": "\x1b[2J", "lora_path": "a"}, 400, "lora_name", None),
    (NEW, {"lora_name": "a" * 129, "lora_path": "a"}, 400, "lora_name", TOO_LONG),
    (GONE, {"lora_name": "\u2028"}, 400, "lora_name", None),
    (GONE, {"lora_name": "a" * 10_000_000}, 400, "lora_name", TOO_LONG),
    (NEW, {"lora_name": "x", "lora_path": "a", "y": 1}, 400, "y", "unknown_parameter"),
    (GONE, {"lora_name": "nope"}, 404, "lora_name", "adapter_not_found"),
    (GONE, {"lora_name": MODEL}, 404, "lora_name", "adapter_not_found"),
    (GONE, {"lora_name": 5}, 400, "lora_name", None),
]
"""Path, body, and the error's status, `param` and `code`."""


@pytest.mark.parametrize(("path", "body", "status", "param", "code"), REFUSED)
async def test_a_refused_change_has_no_effect(
    lora: Gateway, path: str, body: dict[str, Any], status: int, param: str, code: str | None
) -> None:
    response = await lora.post(path, body)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (status, param, code)
    names = [model["id"] for model in (await lora.client.get("/v1/models")).json()["data"]]
    assert names == [MODEL, "mine"]


async def test_without_enable_lora_nothing_is_loaded(gateway: Gateway) -> None:
    new = {"lora_name": "x", "lora_path": str(model_path())}
    for path, body in ((NEW, new), (GONE, {"lora_name": "x"})):
        response = await gateway.post(path, body)
        assert (response.status_code, response.json()["error"]["code"]) == (409, "lora_disabled")


async def test_an_adapter_in_use_is_not_unloaded_until_its_requests_end(
    start: StartGateway, folder: str
) -> None:
    gateway = await start(
        enable_lora=True, lora_modules={"mine": folder}, engine_args={"fake_step_ms": 20}
    )
    body = {"prompt": "a", "model": "mine", "max_tokens": 500, "stream": True}
    exchange = gateway.exchange("/v1/completions", body)
    running = exchange.begin()
    await eventually(lambda: gateway.engine.num_running == 1)
    response = await gateway.post(GONE, {"lora_name": "mine"})
    assert (response.status_code, response.json()["error"]["code"]) == (409, "adapter_in_use")
    exchange.leave()
    await running
    assert (await gateway.post(GONE, {"lora_name": "mine"})).status_code == 200


@pytest.mark.parametrize("n", [1, 3])
async def test_an_adapter_of_a_choice_that_has_not_started_is_in_use(
    start: StartGateway, folder: str, n: int
) -> None:
    """A queued request, and a request of which two choices wait for the first one."""
    gateway = await start(
        enable_lora=True,
        lora_modules={"mine": folder},
        max_num_seqs=1,
        engine_args={"fake_step_ms": 5, "fake_acceptance": 0},
    )
    ahead = gateway.exchange("/v1/completions", {"prompt": "a", "max_tokens": 2000})
    first = ahead.begin()
    await eventually(lambda: gateway.engine.num_running == 1)
    body = {"prompt": "a", "model": "mine", "max_tokens": 4, "n": n, "ignore_eos": True}
    behind = gateway.exchange("/v1/completions", body)
    second = behind.begin()
    await eventually(lambda: gateway.runtime.admission.slots.num_queued == 1)
    response = await gateway.post(GONE, {"lora_name": "mine"})
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "adapter_in_use"
    assert "1 unfinished requests use 'mine'" in response.json()["error"]["message"]
    ahead.leave()
    await asyncio.gather(first, second)
    assert behind.status == 200
    assert (await gateway.post(GONE, {"lora_name": "mine"})).status_code == 200


async def test_an_adapter_stays_between_two_choices_of_a_request(
    start: StartGateway, folder: str
) -> None:
    gateway = await start(
        enable_lora=True,
        lora_modules={"mine": folder},
        max_num_seqs=1,
        engine_args={"fake_step_ms": 1, "fake_acceptance": 0},
    )
    body = {"prompt": "a", "model": "mine", "max_tokens": 8, "n": 8, "ignore_eos": True}
    exchange = gateway.exchange("/v1/completions", body)
    running = exchange.begin()
    await eventually(lambda: gateway.engine.num_running == 1)
    while not running.done():
        status = (await gateway.post(GONE, {"lora_name": "mine"})).status_code
        assert status == 409 or running.done()
    await running
    assert exchange.status == 200


async def test_only_an_admin_key_opens_these_routes(start: StartGateway, folder: str) -> None:
    gateway = await start(
        enable_lora=True, api_key=("user",), admin_key=("admin",), allowed_local_path=[folder]
    )
    body = {"lora_name": "mine", "lora_path": folder}
    for key, status in (("user", 401), ("admin", 200)):
        headers = {"authorization": f"Bearer {key}"}
        assert (await gateway.post(NEW, body, headers=headers)).status_code == status


async def test_every_change_leaves_a_record(
    start: StartGateway, folder: str, tmp_path: Path
) -> None:
    from server.control.admin.audit import Audit

    path = tmp_path / "audit.jsonl"
    gateway = await start(enable_lora=True, allowed_local_path=[folder], audit=Audit(str(path)))
    await gateway.post(NEW, {"lora_name": "mine", "lora_path": folder})
    await gateway.post(NEW, {"lora_name": "mine", "lora_path": folder})
    await gateway.post(GONE, {"lora_name": "mine"})
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(r["what"], r["adapter"], r["outcome"]) for r in records] == [
        ("load_lora_adapter", "mine", "loaded"),
        ("load_lora_adapter", "mine", "refused"),
        ("unload_lora_adapter", "mine", "unloaded"),
    ]
    assert records[1]["error"] == "An adapter 'mine' is loaded already."
