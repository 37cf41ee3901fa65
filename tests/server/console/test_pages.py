"""The console's files as the server sends them, without a browser."""

import re
from pathlib import Path

import pytest
from starlette.routing import Route

import server.console.pages as pages
from engine_adapter.proposers.methods import METHODS
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway

STATIC = Path(pages.__file__).parent / "static"
SCRIPTS = sorted(STATIC.glob("*.js"))


async def test_the_page_and_every_file_that_it_names_are_served(gateway: Gateway) -> None:
    page = await gateway.client.get("/console")
    assert page.headers["content-type"].startswith("text/html")
    named = re.findall(r'(?:src|href)="(console/[^"]+)"', page.text)
    assert {"console/console.css", "console/plotly.min.js", "console/main.js"} == set(named)
    imported = {
        name for path in SCRIPTS for name in re.findall(r'from "./(.+?)"', path.read_text())
    }
    assert imported == {path.name for path in SCRIPTS} - {"main.js"}
    for name in (*named, *(f"console/{name}" for name in imported)):
        answer = await gateway.client.get(f"/{name}")
        assert answer.status_code == 200, name
        kind = "text/css" if name.endswith("css") else "text/javascript"
        assert answer.headers["content-type"].startswith(kind), name


def test_every_method_can_be_chosen_for_a_load() -> None:
    """But `prediction`, which every engine has, and those whose KV is reserved at the start."""
    (offered,) = re.findall(
        r"const METHODS = \[(.+?)\];", (STATIC / "proposers.js").read_text(), re.DOTALL
    )
    refused = ("prediction", "draft_kv")
    loadable = [
        method.name
        for method in METHODS
        if not any(getattr(method.capabilities, name) for name in refused)
    ]
    assert re.findall(r'"(\w+)"', offered) == loadable


async def test_a_file_that_the_browser_has_is_not_sent_again(gateway: Gateway) -> None:
    first = await gateway.client.get("/console/plotly.min.js")
    tag = {"If-None-Match": first.headers["etag"]}
    again = await gateway.client.get("/console/plotly.min.js", headers=tag)
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    assert len(first.content) > 1_000_000


@pytest.mark.parametrize("path", ["/console", "/console/main.js"])
async def test_the_page_may_load_nothing_else_and_be_in_no_frame(
    gateway: Gateway, path: str
) -> None:
    policy = (await gateway.client.get(path)).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "connect-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize("name", ["none.js", "..%2Fpages.py", "%2Fetc%2Fpasswd", "plotly.js"])
async def test_no_other_file_is_served(gateway: Gateway, name: str) -> None:
    assert (await gateway.client.get(f"/console/{name}")).status_code == 404


async def test_a_slash_leads_to_the_page(gateway: Gateway) -> None:
    answer = await gateway.client.get("/console/", follow_redirects=True)
    assert answer.url.path == "/console"
    assert answer.status_code == 200


async def test_without_the_extra_there_is_no_console(
    start: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_chart_folder", lambda: None)
    gateway = await start()
    assert (await gateway.client.get("/console")).status_code == 404


def test_the_files_name_no_other_host() -> None:
    for path in STATIC.iterdir():
        hosts = set(re.findall(r"https?://[^\s\"'`]+", path.read_text()))
        assert hosts <= {"http://www.w3.org/2000/svg"}, path.name


async def test_every_path_that_the_scripts_call_is_a_route(gateway: Gateway) -> None:
    routes = {route.path.lstrip("/") for route in gateway.app.routes if isinstance(route, Route)}
    called = {
        path
        for script in SCRIPTS
        for path in re.findall(r'"(v1/[\w/]+|version|metrics\?)"', script.read_text())
    }
    assert len(called) > 8
    assert {path.rstrip("?") for path in called} <= routes


async def test_every_series_that_the_charts_read_exists(gateway: Gateway) -> None:
    await gateway.complete(max_tokens=30)
    read = set(re.findall(r'"((?:specgate_|vllm:)\w+)"', (STATIC / "metrics.js").read_text()))
    text = (await gateway.client.get("/metrics", params={"name[]": sorted(read)})).text
    assert len(read) == 15
    assert [name for name in read if not re.search(rf"^{name}[ {{]", text, re.MULTILINE)] == []


def test_no_file_is_long() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in STATIC.iterdir()}
    assert {name: length for name, length in lengths.items() if length > 300} == {}
