"""`/v1/files`: forms, owners, quotas, expiry and paths."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.batches.files import MAX_TRANSFERS
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway

TEAMS: dict[str, Any] = {"named_api_key": {"a": "sk-a", "b": "sk-b"}}
A, B = ({"authorization": f"Bearer sk-{name}"} for name in "ab")
FORM = "multipart/form-data; boundary=x"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "files"


async def upload(
    gateway: Gateway, content: bytes = b"{}\n", name: str = "a.jsonl", **more: Any
) -> httpx.Response:
    form = {"purpose": "batch", **more.pop("form", {})}
    return await gateway.client.post(
        "/v1/files", data=form, files={"file": (name, content)}, **more
    )


def part(name: str, content: str, *options: str) -> str:
    head = "; ".join((f'form-data; name="{name}"', *options))
    return f"--x\r\nContent-Disposition: {head}\r\n\r\n{content}\r\n"


def form(*parts: str, end: str = "--x--\r\n") -> bytes:
    return "".join((*parts, end)).encode()


PURPOSE, FILE = part("purpose", "batch"), part("file", "{}", 'filename="a"')


def of_disk(folder: Path) -> list[str]:
    """What is in the folder beside its lock."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name != "lock")


async def test_without_the_setting_every_route_says_so(gateway: Gateway) -> None:
    for method, path in (
        *(("GET", "/v1/files"), ("GET", "/v1/files/x"), ("DELETE", "/v1/files/x")),
        *(("GET", "/v1/files/x/content"), ("GET", "/v1/batches"), ("GET", "/v1/batches/x")),
        ("POST", "/v1/batches/x/cancel"),
    ):
        response = await gateway.client.request(method, path)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (409, "files_disabled")
        assert "--files-dir" in error["message"]
    assert (await upload(gateway)).status_code == 409


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (form(PURPOSE), "file", "missing_required_parameter"),
        (form(FILE), "purpose", "missing_required_parameter"),
        (form(part("purpose", "vision"), FILE), "purpose", "unsupported_parameter"),
        (form(PURPOSE, FILE, FILE), None, "invalid_form"),
        (form(PURPOSE, PURPOSE, FILE), "purpose", "unknown_parameter"),
        (form(PURPOSE, FILE, part("model", "m")), "model", "unknown_parameter"),
        (form(PURPOSE, part("file", "text")), "file", None),
        (form(PURPOSE, FILE, end=""), None, "invalid_form"),
        (form(part("purpose", "b" * 5000), FILE), "purpose", None),
        (form(PURPOSE, part("file", "{}", f'filename="{"n" * 600}"')), "file", None),
        (
            form(PURPOSE, FILE, part("expires_after[seconds]", "3600")),
            "expires_after[anchor]",
            None,
        ),
        (
            form(
                *(PURPOSE, FILE, part("expires_after[anchor]", "created_at")),
                part("expires_after[seconds]", "60"),
            ),
            *("expires_after[seconds]", None),
        ),
        (b"--x\r\n" + b"A: b\r\n" * 1000 + b"\r\n", None, "invalid_form"),
        (b"--x\r\nA: " + b"b" * 10**6, None, "invalid_form"),
        (b"{}", None, "invalid_form"),
        (b"", None, "invalid_form"),
    ],
)
async def test_a_wrong_form_is_refused_and_leaves_nothing(
    start: StartGateway, folder: Path, body: bytes, param: str | None, code: str | None
) -> None:
    gateway = await start(files_dir=str(folder))
    headers = {"content-type": FORM}
    response = await gateway.client.post("/v1/files", content=body, headers=headers)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, code)
    assert of_disk(folder) == []
    shelf = gateway.state.enabled_batches().files.shelf("")
    assert (shelf.num_bytes, shelf.num_pending, shelf.num_transfers) == (0, 0, 0)


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data", "text/plain; a=b"])
async def test_another_content_type_is_refused(
    start: StartGateway, folder: Path, kind: str
) -> None:
    gateway = await start(files_dir=str(folder))
    headers = {"content-type": kind}
    response = await gateway.client.post("/v1/files", content=b"{}", headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_form")


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "a/../../b", "..", "nul\x00l", "ü.jsonl", " "]
)
async def test_a_file_name_is_data_only(start: StartGateway, folder: Path, name: str) -> None:
    gateway = await start(files_dir=str(folder))
    body = form(PURPOSE, part("file", "{}", f'filename="{name}"'))
    response = await gateway.client.post("/v1/files", content=body, headers={"content-type": FORM})
    file = response.json()
    assert (response.status_code, file["filename"].rpartition("/")[2]) == (
        *(200, name.rpartition("/")[2]),
    )
    assert of_disk(folder) == [file["id"], f"{file['id']}.json"]
    assert {path.name for path in folder.parent.iterdir()} == {"files"}


async def test_an_id_that_is_a_path_leads_nowhere(start: StartGateway, folder: Path) -> None:
    gateway = await start(files_dir=str(folder))
    (folder.parent / "secret").write_text("secret")
    file_id = (await upload(gateway)).json()["id"]
    for path in (
        *("..%2f..%2fsecret", "..%2flock", "%2e%2e", f"..%2ffiles%2f{file_id}", f"{file_id}.json"),
        *(f"{file_id}%00", f".%2f{file_id}", file_id.upper()),
    ):
        for method, ending in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            response = await gateway.client.request(method, f"/v1/files/{path}{ending}")
            assert response.status_code == 404, (method, path, ending)
    assert (folder.parent / "secret").read_text() == "secret"
    assert (await gateway.client.get(f"/v1/files/{file_id}/content")).content == b"{}\n"


async def test_a_key_never_sees_anothers_files(start: StartGateway, folder: Path) -> None:
    gateway = await start(files_dir=str(folder), **TEAMS)
    client = gateway.client
    file_id = (await upload(gateway, headers=A)).json()["id"]
    for method, ending in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        response = await client.request(method, f"/v1/files/{file_id}{ending}", headers=B)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "file_not_found")
    assert (await client.get("/v1/files", headers=B)).json()["data"] == []
    batch = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    response = await client.post("/v1/batches", json=batch, headers=B)
    assert (response.status_code, response.json()["error"]["param"]) == (404, "input_file_id")
    after = await client.get("/v1/files", params={"after": file_id}, headers=B)
    assert after.status_code == 400
    assert [file["id"] for file in (await client.get("/v1/files", headers=A)).json()["data"]] == [
        file_id
    ]


async def test_a_large_file_is_streamed_to_the_disk_and_back(
    start: StartGateway, folder: Path
) -> None:
    # Larger than a body may be, and with more values.
    gateway = await start(files_dir=str(folder), max_body_bytes=1000, max_body_values=10)
    content = b'{"a": 1, "b": 2}\n' * 200_000
    file = (await upload(gateway, content)).json()
    assert file["bytes"] == len(content)
    response = await gateway.client.get(f"/v1/files/{file['id']}/content")
    assert response.content == content
    assert response.headers["content-disposition"] == "attachment"
    refusal = await gateway.client.post("/v1/batches", content=b" " * 1001)
    assert refusal.status_code == 413


async def test_sizes_and_numbers_have_limits_for_each_key(
    start: StartGateway, folder: Path
) -> None:
    quotas = {"max_file_bytes": 1000, "max_key_files": 3, "max_key_file_bytes": 2000}
    gateway = await start(files_dir=str(folder), **quotas, **TEAMS)
    large = await upload(gateway, b"x" * 1001, headers=A)
    assert (large.status_code, large.json()["error"]["param"]) == (413, "file")
    # The limit of the whole form refuses it before it is read.
    assert (await upload(gateway, b"x" * 10**6, headers=A)).status_code == 413
    assert (await upload(gateway, b"x" * 1000, headers=A)).status_code == 200
    assert (await upload(gateway, b"x" * 999, headers=A)).status_code == 200
    for content, text in ((b"xx", "of at most 2000"), (b"x", "")):
        response = await upload(gateway, content, headers=A)
        assert response.status_code == (400 if text else 200)
        assert not text or response.json()["error"]["code"] == "file_quota_exceeded"
        assert text in response.text
    response = await upload(gateway, b"", headers=A)
    assert (response.status_code, "3 files of at most 3" in response.text) == (400, True)
    assert (await upload(gateway, b"x", headers=B)).status_code == 200
    assert gateway.sample("specgate_files") == 4
    assert gateway.sample("specgate_file_bytes") == 2001
    files = (await gateway.client.get("/v1/files", headers=A)).json()["data"]
    await gateway.client.delete(f"/v1/files/{files[0]['id']}", headers=A)
    assert (await upload(gateway, b"x", headers=A)).status_code == 200


async def test_a_key_has_few_transfers_at_a_time(start: StartGateway, folder: Path) -> None:
    gateway = await start(files_dir=str(folder), **TEAMS)
    gateway.state.enabled_batches().files.shelf("a").num_transfers = MAX_TRANSFERS
    response = await upload(gateway, headers=A)
    assert response.json()["error"]["code"] == "concurrency_limit_exceeded"
    assert (await upload(gateway, headers=B)).status_code == 200


async def test_an_upload_that_breaks_off_leaves_nothing(start: StartGateway, folder: Path) -> None:
    gateway = await start(files_dir=str(folder), body_timeout_s=0.05)

    async def stuck() -> Any:
        yield form(PURPOSE, part("file", "x" * 100_000, 'filename="a"'), end="")[:-10]
        await asyncio.sleep(60)

    headers = {"content-type": FORM}
    response = await gateway.client.post("/v1/files", content=stuck(), headers=headers)
    assert response.status_code == 408
    assert of_disk(folder) == []
    assert gateway.sample("specgate_file_bytes") == 0


async def test_a_full_disk_is_said(
    start: StartGateway, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start(files_dir=str(folder))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("server.batches.folder.json.dump", full)
    response = await upload(gateway)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (503, "files_unavailable")
    assert "No space left" in error["message"]
    assert str(folder) not in error["message"]
    assert (await gateway.client.get("/v1/files")).json()["data"] == []
    assert not [name for name in of_disk(folder) if not name.endswith(".new")]


async def test_files_expire(
    start: StartGateway, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start(files_dir=str(folder), file_lifetime_s=7200)
    files = gateway.state.enabled_batches().files
    short = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    first = (await upload(gateway, form=short)).json()
    second = (await upload(gateway)).json()
    long = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "2592000"}
    third = (await upload(gateway, form=long)).json()
    lives = [file["expires_at"] - file["created_at"] for file in (first, second, third)]
    assert lives == [3600, 7200, 7200]
    monkeypatch.setattr(files, "now", lambda: float(first["expires_at"]))
    assert (await gateway.client.get(f"/v1/files/{first['id']}")).status_code == 404
    assert len((await gateway.client.get("/v1/files")).json()["data"]) == 2
    await files.expire()
    assert first["id"] not in of_disk(folder)
    assert second["id"] in of_disk(folder)


@pytest.mark.parametrize("broken", ["{broken", "[]", "{}", '{"owner": "a", "more": 1}'])
async def test_files_survive_a_restart_and_what_is_broken_is_left_out(
    start: StartGateway, folder: Path, broken: str
) -> None:
    first = await start(files_dir=str(folder), **TEAMS)
    ids = [(await upload(first, name=f"{i}", headers=A)).json()["id"] for i in range(3)]
    await first.state.enabled_batches().close()
    (folder / "files" / ids[0]).unlink()
    (folder / "files" / f"{ids[1]}.json").write_text(broken)
    (folder / "uploads" / "left").write_text("of a crash")
    (folder / "files" / f"file-{'0' * 32}").write_text("a crash came before its record")
    (folder / "files" / f"{ids[2]}.0.new").write_text("{half")
    second = await start(files_dir=str(folder), **TEAMS)
    listed = (await second.client.get("/v1/files", headers=A)).json()["data"]
    assert [(file["id"], file["filename"]) for file in listed] == [(ids[2], "2")]
    assert second.sample("specgate_file_bytes") == 3
    assert of_disk(folder) == sorted([ids[1], f"{ids[1]}.json", ids[2], f"{ids[2]}.json"])


async def test_pages(start: StartGateway, folder: Path) -> None:
    gateway = await start(files_dir=str(folder))
    ids = [(await upload(gateway)).json()["id"] for _ in range(3)]
    get = gateway.client.get
    page = (await get("/v1/files", params={"limit": 2})).json()
    assert sorted(file["id"] for file in page["data"]) != sorted(ids)
    assert (page["first_id"], page["last_id"], page["has_more"]) == (
        *(page["data"][0]["id"], page["data"][1]["id"], True),
    )
    rest = (await get("/v1/files", params={"limit": 2, "after": page["last_id"]})).json()
    assert rest["has_more"] is False
    assert [file["id"] for file in page["data"] + rest["data"]] == ids[::-1]
    assert (await get("/v1/files", params={"purpose": "batch_output"})).json()["data"] == []


async def test_a_client_that_leaves_ends_its_download(start: StartGateway, folder: Path) -> None:
    gateway = await start(files_dir=str(folder))
    file = (await upload(gateway, b"x" * 10**6)).json()
    path = f"/v1/files/{file['id']}/content"
    is_gone, num_pieces = asyncio.Event(), 0

    async def receive() -> Any:
        await is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal num_pieces
        num_pieces += message["type"] == "http.response.body"
        if num_pieces == 2:
            is_gone.set()
            await asyncio.sleep(60)

    exchange = gateway.exchange(path, None)
    scope = {**exchange._scope(), "method": "GET"}
    async with asyncio.timeout(30):
        await gateway.app(scope, receive, send)
    shelf = gateway.state.enabled_batches().files.shelf("")
    assert (num_pieces, shelf.num_transfers) == (2, 0)
