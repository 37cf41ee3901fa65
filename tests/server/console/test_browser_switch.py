"""The console in Chromium: switches under load."""

from playwright.sync_api import Page, expect

from tests.server.console.conftest import Load, StartServer, ask, open_console


def test_a_switch_under_load(page: Page, serve: StartServer) -> None:
    server = serve()
    open_console(page, server)
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
    audit = page.locator("#audit tbody tr")
    expect(audit).to_have_count(3)
    expect(audit.first).to_contain_text("try drain")
    expect(audit.last).to_contain_text("try immediate")
    expect(page.locator("#chart-acceptance .shapelayer path")).to_have_count(3)
    assert set(load.statuses) == {200}
