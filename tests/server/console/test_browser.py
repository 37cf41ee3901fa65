"""The console in Chromium: charts, loads, policies, keys, comparison, accessibility.

One test in Chromium is in `make test`: see `test_browser_switch.py`.
"""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.server.console.conftest import Load, StartServer, ask, open_console, show
from tests.server.threaded import ThreadedServer

pytestmark = pytest.mark.prove

CHARTS = ("chart-acceptance", "chart-step", "chart-throughput", "chart-queue")
PHONE = {"width": 390, "height": 844}

SIDEWAYS = """[...document.querySelectorAll("main *")]
  .filter((element) => element.clientWidth && element.scrollWidth > element.clientWidth + 1)
  .filter((element) => ["auto", "scroll"].includes(getComputedStyle(element).overflowX))
  .map((element) => element.id)"""
"""The elements that can be scrolled sideways."""


def enter_key(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Use this key").click()


def test_it_loads_and_draws_the_load(page: Page, serve: StartServer, tmp_path: Path) -> None:
    server = serve()
    open_console(page, server, "overview")
    with Load(server.url):
        for chart in CHARTS:
            drawn = page.locator(f"#{chart} .scatterlayer .trace path.js-line").first
            expect(drawn).to_have_attribute("d", re.compile(r"[LVH]"))
            label = page.locator(f"#{chart}")
            expect(label).to_have_attribute("aria-label", re.compile(r"Now: .*\d"))
        expect(page.locator("#tile-throughput")).to_have_text(re.compile(r"[1-9]\d*\.\d"))
        expect(page.locator("#tile-acceptance")).to_have_text(re.compile(r"\d+\.\d %"))
        expect(page.locator("#tile-running")).to_have_text(re.compile(r"[1-9]"))
    expect(page.locator("#tile-ttft")).to_have_text(re.compile(r"\d+(\.\d)? · \d+"))
    expect(page.locator("#tile-kv")).to_have_text(re.compile(r"\d+\.\d %"))
    expect(page.locator("#tile-errors")).to_have_text("0")
    show(page, "Methods")
    rows = page.locator("#proposers tbody tr")
    names = [proposer["name"] for proposer in ask(server, "/v1/proposers")["data"]]
    assert rows.locator("th").all_text_contents() == names
    assert "%" in rows.filter(has_text="eagle3").inner_text()
    page.screenshot(path=tmp_path / "console.png", full_page=True)


def test_a_refused_switch_says_why(page: Page, serve: StartServer) -> None:
    server = serve()
    open_console(page, server, "methods")
    form = page.locator("#switch")
    form.get_by_label("Method").select_option("ngram")
    form.get_by_label("Draft tokens (k)").fill("99")
    form.get_by_role("button", name="Switch").click()
    expect(form.locator(".result.bad")).to_contain_text("num_speculative_tokens")
    assert ask(server, "/v1/spec_method")["spec_method"] == "draft"


def test_a_proposer_is_loaded_refused_and_unloaded(page: Page, serve: StartServer) -> None:
    server = serve()
    open_console(page, server, "methods")
    form = page.locator("#load")
    result = form.locator(".result")

    page.locator("#load-details summary").click()

    def load(options: str) -> None:
        form.get_by_label("Name").fill("lookup")
        form.get_by_label("Method").select_option("ngram")
        form.get_by_label("Other options").fill(options)
        form.get_by_role("button", name="Load").click()

    load("{")
    expect(result).to_contain_text("The other options are not JSON")
    load('{"depth": 3}')
    expect(result).to_contain_text("depth")
    load('{"prompt_lookup_min": 1}')
    expect(result).to_have_text("lookup is loaded and can be chosen.")
    load("")
    expect(result).to_contain_text("lookup")
    expect(result).to_have_class(re.compile("bad"))
    expect(
        page.locator("#switch select[name=speculative_model] option[value=lookup]")
    ).to_have_count(1)
    button = page.get_by_role("button", name="Unload lookup")
    shown = button.element_handle()
    # The table is read every 2 s. A button that it replaces between press and release has no click.
    page.wait_for_timeout(5000)
    assert shown is not None
    assert shown.evaluate("button => button.isConnected")
    button.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("No request uses it now.")
    dialog.get_by_role("button", name="Keep it").click()
    assert len(ask(server, "/v1/proposers")["changes"]) == 3
    button.click()
    dialog.get_by_role("button", name="Unload it").click()
    expect(page.locator("#unload-result")).to_have_text("lookup is unloaded.")
    page.reload()
    page.get_by_role("button", name="Load lookup", exact=True).click()
    expect(page.locator("#unload-result")).to_have_text("lookup is loaded and can be chosen.")
    (settings,) = [
        info["settings"]
        for info in ask(server, "/v1/proposers")["data"]
        if info["name"] == "lookup"
    ]
    assert settings["prompt_lookup_min"] == 1
    outcomes = [change["outcome"] for change in ask(server, "/v1/proposers")["changes"]]
    assert outcomes[:2] == ["loaded", "unloaded"]
    assert "refused" in outcomes or "failed" in outcomes


def test_what_cannot_be_unloaded_says_why(page: Page, serve: StartServer) -> None:
    server = serve(spec_method="ngram")
    open_console(page, server, "methods")
    for name, reason in (("draft", "keeps its own KV"), ("ngram", "the active method")):
        expect(page.get_by_role("button", name=f"Unload {name}", exact=True)).to_be_disabled()
        row = page.locator("#proposers tbody tr").filter(has=page.locator(f"th:text-is('{name}')"))
        expect(row).to_contain_text(reason)
    expect(page.get_by_role("button", name="Unload suffix")).to_be_enabled()


def test_a_policy_is_changed_as_a_whole_or_not_at_all(page: Page, serve: StartServer) -> None:
    server = serve()
    open_console(page, server, "methods")
    form = page.locator("#policy")
    gain, result = form.get_by_label("min_gain"), form.locator(".result")
    before = ask(server, "/v1/spec_policy")["policies"]

    def change(value: str) -> None:
        gain.fill(value)
        form.get_by_label("Reason").fill("measured")
        form.get_by_role("button", name="Change the parameters").click()

    form.get_by_label("Policy").select_option("auto")
    expect(gain).to_have_value("0.01")
    change("")
    expect(result).to_have_text("min_gain must be a number.")
    change("-3")
    expect(result).to_contain_text("policies.auto.min_gain")
    assert ask(server, "/v1/spec_policy")["policies"] == before
    page.wait_for_timeout(7000)  # the page reads policies every six seconds: an edit stays
    expect(gain).to_have_value("-3")
    form.get_by_role("button", name="Discard my edit").click()
    expect(gain).to_have_value("0.01")
    change("0.05")
    expect(result).to_have_text("The parameters of auto are in force.")
    policies = {p["name"]: p["parameters"] for p in ask(server, "/v1/spec_policy")["policies"]}
    assert policies["auto"]["min_gain"] == 0.05
    show(page, "Audit")
    expect(page.locator("#audit")).to_contain_text("parameters of auto")


def test_a_group_of_parameters_is_a_group_of_fields(page: Page, serve: StartServer) -> None:
    server = serve()
    open_console(page, server, "methods")
    form = page.locator("#policy")
    form.get_by_label("Policy").select_option("load")
    light = form.get_by_role("group", name="light")
    light.get_by_label("proposer").select_option("eagle3")
    light.get_by_label("max_running").fill("5")
    form.get_by_role("button", name="Change the parameters").click()
    expect(form.locator(".result")).to_have_text("The parameters of load are in force.")
    policies = {p["name"]: p["parameters"] for p in ask(server, "/v1/spec_policy")["policies"]}
    assert policies["load"]["light"]["proposer"] == "eagle3"
    assert policies["load"]["light"]["max_running"] == 5


def test_rules_are_changed_and_explained(page: Page, serve: StartServer) -> None:
    server = serve()
    open_console(page, server, "methods")
    form = page.locator("#rule")
    page.locator("#rule-details summary").click()

    def set_rule(name: str, match: str, method: str) -> None:
        form.get_by_label("Name").fill(name)
        form.get_by_label("Conditions").fill(match)
        form.get_by_label("Method").select_option(method)
        form.get_by_role("button", name="Set the rule").click()
        expect(form.locator(".result")).to_contain_text("The rules are in force.")

    set_rule("cold", '{"temperature": {"max": 0}}', "ngram")
    set_rule("long", '{"prompt_tokens": {"min": 1000}}', "suffix")
    set_rule("cold", '{"temperature": {"max": 0.1}}', "eagle3")
    rows = page.locator("#rules-table tbody tr")
    expect(rows.first).to_contain_text("temperature: max 0.1")
    expect(rows.first).to_contain_text("eagle3")
    explain = page.locator("#explain")
    explain.get_by_role("button", name="Explain").click()
    expect(explain.locator(".result")).to_contain_text("draft (k\u00a04): ")
    expect(explain.locator("tr").first).to_contain_text("does not match")
    page.get_by_role("button", name="Up long").click()
    expect(rows.first).to_contain_text("prompt_tokens: min 1000")
    page.get_by_role("button", name="Edit cold").click()
    expect(form.get_by_label("Conditions")).to_have_value('{"temperature":{"max":0.1}}')
    page.get_by_role("button", name="Remove cold").click()
    expect(rows).to_have_count(1)
    assert [rule["name"] for rule in ask(server, "/v1/spec_policy")["rules"]] == ["long"]


def test_a_chat_goes_on_under_the_chosen_methods(page: Page, serve: StartServer) -> None:
    server = serve()
    open_console(page, server)
    form = page.locator("#chat")
    answers = page.locator("#messages .assistant")
    asked: list[Any] = []
    page.on(
        "request",
        lambda request: (
            asked.append(request.post_data_json)
            if request.url.endswith("chat/completions")
            else None
        ),
    )
    for turn, method in enumerate(("the active method", "eagle3", "none")):
        form.get_by_label("Message").fill(f"question {turn}")
        form.get_by_label("Method").select_option(method)
        form.get_by_label("Tokens", exact=True).fill("40")
        form.get_by_role("button", name="Send").click()
        expect(answers.nth(turn).locator(".figures")).to_contain_text("40 tokens")
        expect(form.get_by_role("button", name="Send")).to_be_enabled()
    methods = [body.get("spec_decode") for body in asked]
    assert methods == [None, {"proposer": "eagle3"}, {"proposer": "none"}]
    assert [message["role"] for message in asked[2]["messages"]] == ["user", "assistant"] * 2 + [
        "user"
    ]
    assert answers.nth(1).locator(".drafted").count() > 0
    assert answers.nth(2).locator(".drafted, .mixed").count() == 0
    rejected = answers.nth(1).locator(".rejected").first
    expect(rejected).to_be_hidden()
    page.get_by_label("Show where drafts were rejected").check()
    expect(rejected).to_be_visible()
    page.get_by_role("button", name="New chat").click()
    expect(answers).to_have_count(0)


def test_a_refused_message_can_be_sent_again(page: Page, serve: StartServer) -> None:
    server = serve()
    open_console(page, server)
    form = page.locator("#chat")
    form.get_by_label("Tokens", exact=True).fill("99999")
    form.get_by_role("button", name="Send").click()
    expect(page.locator("#chat-result.bad")).to_contain_text("max_tokens")
    expect(form.get_by_label("Message")).to_have_value(re.compile("parse_date"))
    expect(page.locator("#messages li")).to_have_count(0)


def test_the_gain_is_the_first_tile(page: Page, serve: StartServer) -> None:
    server = serve(spec_method="none")
    open_console(page, server, "overview")
    gain, note = page.locator(".tiles dd").first, page.locator("#note-gain")
    expect(gain).to_have_text("1.00 \u00d7")
    expect(note).to_have_text("plain decoding is active")
    switch(server, "eagle3")
    with Load(server.url):
        expect(note).to_have_text("estimated from step times")
        expect(gain).to_have_text(re.compile(r"^[1-9]\.\d\d \u00d7$"))
        switch(server, "auto")
        expect(note).to_have_text("as auto expects")


def switch(server: ThreadedServer, method: str) -> None:
    body = {"speculative_model": method}
    url = f"{server.url}/v1/switch_spec_method"
    httpx.post(url, json=body, trust_env=False).raise_for_status()


def test_a_line_is_switched_by_its_name(page: Page, serve: StartServer) -> None:
    server = serve()
    open_console(page, server, "overview")
    with Load(server.url):
        button = page.locator("#legend button[data-line=ngram]")
        expect(button).to_have_attribute("aria-pressed", "true")
        label = page.locator("#chart-acceptance")
        expect(label).to_have_attribute("aria-label", re.compile("ngram"))
        button.click()
        expect(button).to_have_attribute("aria-pressed", "false")
        expect(label).not_to_have_attribute("aria-label", re.compile("ngram"))


def test_the_address_names_the_tab_and_arrows_move(page: Page, serve: StartServer) -> None:
    server = serve()
    open_console(page, server, "audit")
    expect(page.get_by_role("tab", name="Audit")).to_have_attribute("aria-selected", "true")
    page.get_by_role("tab", name="Audit").press("ArrowRight")
    expect(page.get_by_role("tab", name="Chat")).to_be_focused()
    expect(page.locator("#chat-view")).to_be_visible()
    assert page.url.endswith("#/chat")


def test_two_methods_are_compared_token_by_token(page: Page, serve: StartServer) -> None:
    server = serve()
    open_console(page, server)
    form = page.locator("#compare")
    form.get_by_label("Left").select_option("none")
    form.get_by_label("Right").select_option("eagle3")
    form.get_by_label("Tokens").fill("80")
    form.get_by_label("Runs").fill("2")
    form.get_by_role("button", name="Compare").click()
    result = page.locator("#compare-result")
    expect(result).to_contain_text("Both wrote the same text.")
    assert re.search(
        r"eagle3 is \d+\.\d\d times as fast as none \(\d+\.\d\d to \d+\.\d\d in 2 runs\)",
        result.inner_text(),
    )
    assert page.locator("#left .drafted, #left .rejected").count() == 0
    drafted = page.locator("#right .drafted").all()
    assert {token.get_attribute("data-who") for token in drafted} == {"eagle3"}
    figures = page.locator("#right-figures").inner_text()
    accepted, asked = map(int, re.search(r"eagle3 (\d+) of (\d+)", figures).groups())  # type: ignore[union-attr]
    rejected = [int(mark.inner_text()[1:]) for mark in page.locator("#right .rejected").all()]
    assert sum(rejected) == asked - accepted
    mixed = page.locator("#right .mixed").count()
    assert len(drafted) == accepted if not mixed else 0 < len(drafted) < accepted


def test_a_comparison_can_be_stopped(page: Page, serve: StartServer) -> None:
    server = serve()
    open_console(page, server)
    form = page.locator("#compare")
    form.get_by_label("Tokens").fill("1500")
    form.get_by_role("button", name="Compare").click()
    expect(page.locator("#left .token").nth(5)).to_be_visible()
    form.get_by_role("button", name="Stop").click()
    expect(page.locator("#compare-result")).to_have_text("Stopped.")
    for _ in range(50):
        if ask(server, "/v1/spec_method")["in_flight"] == {}:
            break
        page.wait_for_timeout(50)
    assert ask(server, "/v1/spec_method")["in_flight"] == {}


def test_a_wrong_key_is_refused_where_it_is_entered(page: Page, serve: StartServer) -> None:
    server = serve(api_key=["reader"], admin_key=["root"])
    page.goto(f"{server.url}/console")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    expect(page.locator("#problem")).to_have_text("This server needs a key.")
    enter_key(page, "wrong")
    expect(page.locator("#key-problem")).to_have_text("The given key is not valid.")
    assert page.evaluate("sessionStorage.length") == 0
    enter_key(page, "reader")
    expect(dialog).to_be_hidden()
    expect(page.locator("#state")).to_have_text("Connected, read only")
    # A valid key: nothing may say that it is wrong.
    expect(page.locator("#problem")).to_have_text(
        "Only charts and messages. Give an admin key to see and change more."
    )
    assert page.locator("#switch").evaluate("form => form.inert")
    show(page, "Overview")
    with Load(server.url, "reader"):
        expect(page.locator("#tile-throughput")).to_have_text(re.compile(r"[1-9]\d*\.\d"))
    page.get_by_role("button", name=re.compile("^Key")).click()
    enter_key(page, "root")
    expect(page.locator("#state")).to_have_text("Connected")
    assert not page.locator("#switch").evaluate("form => form.inert")
    page.reload()
    expect(page.locator("#state")).to_have_text("Connected")


def test_where_only_admin_routes_need_a_key_another_key_is_wrong(
    page: Page, serve: StartServer
) -> None:
    server = serve(admin_key=["root"])
    page.goto(f"{server.url}/console")
    expect(page.locator("#state")).to_have_text("Connected, read only")
    page.get_by_role("button", name=re.compile("^Key")).click()
    enter_key(page, "wrong")
    expect(page.locator("#key-problem")).to_contain_text("The given key is not valid")


def test_the_server_goes_and_comes_back(page: Page, serve: StartServer) -> None:
    server = serve()
    open_console(page, server)
    server.stop()
    expect(page.locator("#state")).to_have_text("No answer")
    expect(page.locator("#problem")).to_contain_text("The server does not answer.")
    assert page.locator("#switch").evaluate("form => form.inert")
    serve(port=server.port)
    expect(page.locator("#state")).to_have_text("Connected")
    expect(page.locator("#problem")).to_be_hidden()
    assert not page.locator("#switch").evaluate("form => form.inert")


def test_a_dead_engine_is_shown(page: Page, serve: StartServer) -> None:
    server = serve()
    open_console(page, server)
    server.engine.die("the GPU fell off the bus")
    expect(page.locator("#state")).to_have_text("Engine dead")
    expect(page.locator("#problem")).to_contain_text("the GPU fell off the bus")


def test_the_keyboard_alone_switches(page: Page, serve: StartServer) -> None:
    server = serve()
    open_console(page, server)
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    show(page, "Methods")
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.name") == "speculative_model":
            break
    page.keyboard.type("ngram")
    page.keyboard.press("Enter")
    for _ in range(10):
        if page.evaluate("document.activeElement.type") == "submit":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#switch .result")).to_contain_text("→ ngram")
    assert ask(server, "/v1/spec_method")["spec_method"] == "ngram"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, PHONE["width"]])
def test_axe_finds_no_barrier(
    page: Page, serve: StartServer, tmp_path: Path, scheme: str, width: int
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    server = serve()
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": 844})
    open_console(page, server)
    axe = Axe()
    with Load(server.url):
        page.locator("#chat").get_by_label("Tokens", exact=True).fill("40")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#messages .figures")).to_contain_text("40 tokens")
        page.locator("#compare").get_by_label("Tokens").fill("40")
        page.locator("#compare").get_by_label("Runs").fill("1")
        page.locator("#compare").get_by_role("button", name="Compare").click()
        expect(page.locator("#compare-result")).to_contain_text("times as fast")
        for tab in ("Chat", "Overview", "Methods", "Audit"):
            show(page, tab)
            if tab == "Overview":
                expect(page.locator("#tile-acceptance")).to_have_text(re.compile(r"\d+\.\d %"))
            for details in page.locator("details:visible > summary").all():
                details.click()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), tab
            assert page.evaluate(SIDEWAYS) == [], f"{tab}: scrolls sideways"
            page.screenshot(path=tmp_path / f"{tab}-{scheme}-{width}.png", full_page=True)
            violations = axe.run(page)
            assert violations.violations_count == 0, violations.generate_report()
    page.get_by_role("button", name=re.compile("^Key")).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    violations = axe.run(page)
    assert violations.violations_count == 0, violations.generate_report()


def test_a_fleet_that_does_not_answer_does_not_stop_the_page(
    page: Page, serve: StartServer
) -> None:
    """One silent replica holds back the table of all, and nothing else."""
    server = serve()
    asked: list[Route] = []

    def hold(route: Route) -> None:
        asked.append(route)

    page.route("**/fleet", hold)
    page.goto(f"{server.url}/console#fleet")
    expect(page.locator("#state")).to_have_text("Connected")
    before = page.locator("#tile-active").inner_text()
    httpx.post(
        f"{server.url}/v1/switch_spec_method", json={"speculative_model": "ngram"}, trust_env=False
    ).raise_for_status()
    expect(page.locator("#tile-active")).not_to_have_text(before)
    assert len(asked) == 1, "it is not asked again before it has answered"
