"""The console in Chromium: switches under load."""

import re

from playwright.sync_api import Page, expect

from tests.server.console.conftest import Load, StartServer, ask, open_console, show


def test_a_switch_under_load(page: Page, serve: StartServer) -> None:
    server = serve()
    open_console(page, server, "methods")
    with Load(server.url) as load:
        load.wait_for(5)
        form = page.locator("#switch")
        for method, mode in (("ngram", "immediate"), ("suffix", "new_requests"), ("auto", "drain")):
            name = "auto" if method == "auto" else method
            form.get_by_label("Method").select_option(name)
            form.get_by_label("Mode").select_option(mode)
            form.get_by_label("Reason").fill(f"try {mode}")
            form.get_by_role("button", name="Switch").click()
            expect(form.locator(".result")).to_contain_text(f"→ {name}")
            expect(form.locator(".result")).to_contain_text(f"{mode}, ")
            expect(page.locator("#tile-active")).to_contain_text(name)
            assert ask(server, "/v1/spec_method")["spec_method"] == name
            load.wait_for(3)
    show(page, "Audit")
    audit = page.locator("#audit tbody tr")
    expect(audit).to_have_count(3)
    expect(audit.first).to_contain_text("try drain")
    expect(audit.last).to_contain_text("try immediate")
    expect(audit.first.locator("time")).to_have_text(
        re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")
    )
    show(page, "Overview")
    expect(page.locator("#chart-acceptance .shapelayer path")).to_have_count(3)
    assert set(load.statuses) == {200}
