"""Recording rules and alerts: they do what they say, on metrics that exist, with a runbook each."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from starlette.routing import Route

from engine_adapter.fake.metrics import FakeMetrics
from server.telemetry.http_metrics import GENERATING
from server.telemetry.metrics import Metrics
from tests import documentation
from tests.deploy.prometheus.promtool import promtool
from tests.deploy.prometheus.rules import ALERTS, FOLDER, RECORDS, ROOT, RULE_FILES, rules
from tests.deploy.prometheus.selectors import OF_PROMETHEUS, SCRAPE_LABELS, selectors
from tests.server.gateway import build

HERE = Path(__file__).parent
UNIT_TESTS = (HERE / "alerts.test.yml", HERE / "recording.test.yml")
NEVER, ALWAYS = "vector(1) > 2", "vector(1)"


def test_the_configuration_is_valid() -> None:
    status, output = promtool("check", "config", FOLDER / "prometheus.yml")
    assert status == 0, output
    assert f"{len(RULE_FILES)} rule files found" in output


@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.name)
def test_rules_do_what_their_unit_tests_say(path: Path) -> None:
    status, output = promtool("test", "rules", path)
    assert status == 0, output


@pytest.mark.prove
@pytest.mark.parametrize("expr", [NEVER, ALWAYS], ids=["silent", "firing"])
def test_the_unit_tests_notice_an_alert_that_is_always(expr: str, tmp_path: Path) -> None:
    for path in RULE_FILES:
        content = yaml.safe_load(path.read_text())
        for group in content["groups"]:
            for rule in group["rules"]:
                if "alert" in rule:
                    rule["expr"] = expr
        (tmp_path / path.name).write_text(yaml.safe_dump(content))
    tests = yaml.safe_load(UNIT_TESTS[0].read_text()) | {"rule_files": [f"{tmp_path}/*.yml"]}
    broken = tmp_path / "broken.test"
    broken.write_text(yaml.safe_dump(tests))
    status, output = promtool("test", "rules", broken)
    assert status == 1
    assert [name for name in ALERTS if f"alertname: {name}," not in output] == []


def test_each_alert_has_a_firing_and_a_silent_unit_test() -> None:
    firing, silent = set(), set()
    for test in yaml.safe_load(UNIT_TESTS[0].read_text())["tests"]:
        for case in test["alert_rule_test"]:
            (firing if case.get("exp_alerts") else silent).add(case["alertname"])
    assert firing == silent == set(ALERTS)
    assert len(ALERTS) == 18


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_has_a_runbook_that_names_it(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("page", "ticket")
    site, _, anchor = rule["annotations"]["runbook_url"].partition("/operations/#")
    assert site == '{{ or $externalLabels.docs_url "docs" }}'
    text = (ROOT / "docs" / "operations.md").read_text()
    headings = re.findall(r"^### (.+)$", text, re.MULTILINE)
    (heading,) = [h for h in headings if documentation.slugs(f"# {h}") == {anchor}]
    section = text.partition(f"\n### {heading}\n")[2].partition("\n##")[0]
    assert f"`{alert}`" in section


def label_names() -> dict[str, set[str]]:
    """Sample -> its labels, of every metric of the gateway and of an engine."""
    registry = CollectorRegistry()
    Metrics(registry)
    FakeMetrics(registry, "demo", 5)
    found: dict[str, set[str]] = {}
    for collector in registry._collector_to_names:
        (family,) = collector.describe()  # type: ignore[attr-defined]
        labels = set(collector._labelnames)  # type: ignore[attr-defined]
        suffixes = {"counter": ("_total",), "histogram": ("_sum", "_count")}
        for suffix in suffixes.get(family.type, ("",)):
            found[family.name + suffix] = labels
        if family.type == "histogram":
            found[f"{family.name}_bucket"] = {*labels, "le"}
    return found


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_each_rule_asks_for_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    known = label_names()
    found = selectors(rule["expr"])
    assert found
    for selector in found:
        if selector.name in {*OF_PROMETHEUS, *RECORDS}:
            continue
        assert selector.name in known, selector.name
        asked = {label for label, _, _ in selector.matchers} - SCRAPE_LABELS
        assert asked <= known[selector.name], selector


def test_the_objectives_cover_every_route_that_generates() -> None:
    app, _, _ = build()
    paths = {route.path for route in app.routes if isinstance(route, Route)}
    patterns = {
        value
        for rule in rules()
        for selector in selectors(rule["expr"])
        for label, _, value in selector.matchers
        if label == "route"
    }
    (pattern,) = patterns
    assert {path for path in paths if re.fullmatch(pattern, path)} == set(GENERATING)


def test_each_recorded_figure_is_documented_and_no_other() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    table = documentation.section(text, "Recorded ratios")
    named = {
        name
        for cells in documentation.rows(table)
        for name in re.findall(r"`(\w+:\w+:\w+)`", cells[0])
    }
    assert named == set(RECORDS)
    elsewhere = {
        name
        for page in documentation.read(ROOT).values()
        for name in re.findall(r"\b([a-z_]+:(?:specgate|vllm)_\w+:\w+)\b", page)
    }
    assert elsewhere == named


def test_a_figure_has_the_labels_that_its_name_says() -> None:
    for name, rule in RECORDS.items():
        level = name.partition(":")[0]
        labels = [] if level == "job" else [x for x in level.split("_") if x != "job"]
        grouped = re.findall(r"sum by \(([\w, ]+)\)", rule["expr"])
        wanted = {"job", *labels}
        assert all(wanted >= set(by.split(", ")) for by in grouped), name
