"""The console on a real engine: the comparison is true, and the pictures of the documentation.

With `CONSOLE_IMAGES=docs/images` in the environment the pictures are written there.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.served import Served
from tests.server.console.conftest import Load, browser, page, show  # noqa: F401

pytestmark = [pytest.mark.engine, pytest.mark.prove]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Where the pictures go."""
    return Path(os.environ.get("CONSOLE_IMAGES", tmp_path))


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Served]:
    """The demo on a free port."""
    server = Served.start_beside(tmp_path / "server.log")
    yield server
    server.stop()


def test_the_console_on_a_real_engine(page: Page, demo: Served, images: Path) -> None:  # noqa: F811
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{demo.url}/console#/methods")
    expect(page.locator("#state")).to_have_text("Connected")
    switch = page.locator("#switch")
    with Load(demo.url) as load:
        for method in ("eagle3", "auto"):
            switch.get_by_label("Method").select_option(method)
            switch.get_by_label("Reason").fill("evening load")
            switch.get_by_role("button", name="Switch").click()
            expect(switch.locator(".result")).to_contain_text(f"→ {method}")
            page.wait_for_timeout(15_000)
        page.screenshot(path=images / "console-methods.png", full_page=True)
        show(page, "Overview")
        expect(page.locator("#tile-acceptance")).to_have_text(re.compile(r"\d+\.\d %"))
        expect(page.locator("#tile-gain")).to_have_text(re.compile(r"\d\.\d\d \u00d7"))
        page.wait_for_timeout(15_000)
        page.screenshot(path=images / "console-overview.png")
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size({"width": 390, "height": 844})
        page.wait_for_timeout(3_000)
        page.screenshot(path=images / "console-phone.png")
    assert set(load.statuses) == {200}
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1440, "height": 900})
    show(page, "Chat")
    check_chat(page)
    page.screenshot(path=images / "console-chat.png")
    check_comparison(page)
    page.locator("section", has=page.locator("#compare")).screenshot(
        path=images / "console-compare.png"
    )


def check_chat(page: Page) -> None:  # noqa: F811
    """Two messages: a suffix tree drafts what the model wrote before."""
    form = page.locator("#chat")
    for turn in range(2):
        form.get_by_label("Message").fill(
            "Write a function `parse_date`: read a date from a string."
        )
        form.get_by_label("Method").select_option("suffix")
        form.get_by_role("button", name="Send").click()
        figures = page.locator("#messages .assistant").nth(turn).locator(".figures")
        expect(form.get_by_role("button", name="Send")).to_be_enabled(timeout=60_000)
        expect(figures).to_contain_text("tokens per step")
    assert page.locator("#messages .drafted").count() > 0


def check_comparison(page: Page) -> None:  # noqa: F811
    """The coloured tokens are as many as the engine counted."""
    form = page.locator("#compare")
    form.get_by_label("Left").select_option("none")
    form.get_by_label("Right").select_option("eagle")
    form.get_by_role("button", name="Compare").click()
    expect(page.locator("#compare-result")).to_contain_text("in 3 runs", timeout=60_000)
    drafted = page.locator("#right .drafted").count()
    figures = page.locator("#right-figures").inner_text()
    match = re.search(r"eagle (\d+) of (\d+)", figures)
    assert match, figures
    mixed = page.locator("#right .mixed").count()
    assert drafted == int(match[1]) if not mixed else 0 < drafted < int(match[1])
    assert page.locator("#left .drafted").count() == 0
