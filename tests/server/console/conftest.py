"""Chromium, and servers on the fake engine for it to open."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.server.threaded import ThreadedServer

ACCEPTANCE = {"ngram": 0.5, "suffix": 0.6, "draft": 0.8, "eagle3": 0.9}

expect.set_options(timeout=60_000)

StartServer = Callable[..., ThreadedServer]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium; skips the test where there is none."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        # Root may start Chromium only without its sandbox; it opens loopback pages only.
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def serve() -> Iterator[StartServer]:
    """Starts servers whose steps take some milliseconds, as an engine's do."""
    servers: list[ThreadedServer] = []

    def start(**settings: Any) -> ThreadedServer:
        arguments = {"fake_step_ms": 5, "fake_acceptance": ACCEPTANCE, "fake_length": 400}
        servers.append(ThreadedServer(engine_args=arguments, **settings).start())
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A new page; the test fails if a script fails or asks another host."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith(("http://127.0.0.1:", "data:", "blob:"))
            else wrong.append(request.url)
        ),
    )
    yield page
    context.close()
    assert wrong == []


def open_console(page: Page, server: ThreadedServer, tab: str = "chat") -> None:
    """Opens a tab of a server's console and waits until it is connected."""
    page.goto(f"{server.url}/console#/{tab}")
    expect(page.locator("#state")).to_have_text("Connected")
    expect(page.locator(f"#{tab}-view")).to_be_visible()


def show(page: Page, tab: str) -> None:
    """Goes to another tab."""
    page.get_by_role("tab", name=tab).click()
    expect(page.locator(f"#{tab.lower()}-view")).to_be_visible()


def ask(server: ThreadedServer, path: str) -> Any:
    """A GET of JSON, past the console."""
    return httpx.get(f"{server.url}{path}", trust_env=False).json()


class Load:
    """Requests in the background: some name a proposer, the others do not.

    Attributes:
        statuses: of the answers so far.
    """

    def __init__(self, url: str, key: str = "") -> None:
        self.statuses: list[int] = []
        self._url = url
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(3)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def wait_for(self, answers: int) -> None:
        """Waits until this many more requests are answered."""
        wanted = len(self.statuses) + answers
        deadline = time.monotonic() + 60
        while len(self.statuses) < wanted:
            assert time.monotonic() < deadline, "the load is not answered"
            time.sleep(0.02)

    def _run(self, number: int) -> None:
        methods = [{"proposer": name} for name in ACCEPTANCE]
        options = [*({"spec_decode": method} for method in methods), {}]
        with httpx.Client(
            base_url=self._url, headers=self._headers, trust_env=False, timeout=60
        ) as client:
            turn = number
            while not self._stop.is_set():
                turn += 1
                body = {"prompt": f"text {turn}", "max_tokens": 60, **options[turn % len(options)]}
                self.statuses.append(client.post("/v1/completions", json=body).status_code)
