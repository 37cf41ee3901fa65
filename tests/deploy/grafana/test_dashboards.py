"""The dashboards: every panel is complete, and asks for metrics that servers have."""

import copy
import json
import re
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from engine_adapter.fake.metrics import FakeMetrics
from server.telemetry.metrics import Metrics
from tests import documentation
from tests.deploy.grafana import queries
from tests.deploy.grafana.queries import FOLDER, NAMES

ROOT = FOLDER.parents[2]
PROVISIONING = FOLDER.parent / "provisioning"
GRAFANAS_OWN = {"__rate_interval", "__interval", "__range"}
ON_ALL = ("datasource", "job", "instance")
SELECTOR = 'job=~"$job",instance=~"$instance"'

Json = dict[str, Any]


@pytest.fixture(params=NAMES)
def dashboard(request: pytest.FixtureRequest) -> Json:
    return queries.load(FOLDER / f"{request.param}.json")


def changed(**fields: Any) -> Json:
    """A correct dashboard with other values in its first panel."""
    wrong = queries.load(FOLDER / "overview.json")
    panel = next(queries.panels(wrong))
    assert isinstance(panel, dict)
    panel.update(fields)
    return wrong


def test_no_other_json_is_provisioned() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(NAMES)


def incomplete(dashboard: Json) -> list[str]:
    """Panels without title, description, unit, data source, job or instance."""
    found = []
    for panel in queries.panels(dashboard):
        title = panel.get("title") or f"panel {panel['id']}"
        unit = panel["fieldConfig"]["defaults"].get("unit", "")
        if not panel.get("title"):
            found.append(f"{title} has no title")
        if len(panel.get("description", "").split()) < 4:
            found.append(f"{title} has no description")
        if not unit:
            found.append(f"{title} has no unit")
        for place in (panel, *panel["targets"]):
            if place.get("datasource") != {"type": "prometheus", "uid": "${datasource}"}:
                found.append(f"{title} has a data source of its own")
        for target in panel["targets"]:
            found += [f"{title}: {wrong}" for wrong in wrong_query(target["expr"])]
            if not target["legendFormat"]:
                found.append(f"{title} has a query without legend")
    return found


def wrong_query(expr: str) -> list[str]:
    """Windows that are fixed, and metrics that are not selected by job and instance."""
    windows = re.findall(r"\[([^\]]+)\]", expr)
    fixed = [window for window in windows if window not in ("$__rate_interval", "$__range")]
    rates = len(re.findall(r"\b(?:rate|increase|max_over_time)\(", expr))
    selectors = re.findall(r"(?:vllm:|specgate_|\bup)\w*(\{[^}]*\})?", expr)
    found = [f"the window {window} is fixed" for window in fixed]
    if rates != len(windows):
        found.append("a rate has no window")
    if not selectors or not all(one.startswith("{" + SELECTOR) for one in selectors):
        found.append(f"a metric has no job and instance: {expr}")
    return found


def test_every_panel_is_complete(dashboard: Json) -> None:
    assert incomplete(dashboard) == []


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"title": ""}, "no title"),
        ({"description": "Errors."}, "no description"),
        ({"fieldConfig": {"defaults": {}}}, "no unit"),
        ({"datasource": {"type": "prometheus", "uid": "mine"}}, "data source of its own"),
    ],
)
def test_the_check_of_panels_finds(fields: Json, wanted: str) -> None:
    (finding,) = incomplete(changed(**fields))
    assert wanted in finding


@pytest.mark.parametrize(
    "expr",
    [
        f"sum(rate(specgate_requests_total{{{SELECTOR}}}[5m]))",
        "sum(rate(specgate_requests_total[$__rate_interval]))",
        'sum(vllm:num_requests_running{job=~"$job"})',
        f"vllm:num_requests_running{{{SELECTOR}}} / vllm:num_requests_waiting",
        f"rate(specgate_requests_total{{{SELECTOR}}})",
    ],
)
def test_the_check_of_queries_finds(expr: str) -> None:
    assert wrong_query(expr)


def test_variables_choose_data_source_job_and_instance(dashboard: Json) -> None:
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert tuple(variables)[:3] == ON_ALL
    for name, variable in variables.items():
        assert variable["label"], name
        assert variable["description"], name
    for name in ("job", "instance"):
        assert variables[name]["includeAll"]
        assert variables[name]["allValue"] == ".+"
    used = queries.variables(json.dumps(dashboard)) - GRAFANAS_OWN - {"__all"}
    assert used == set(variables)


def test_switches_and_restarts_are_annotations(dashboard: Json) -> None:
    annotations = {one["name"]: one for one in dashboard["annotations"]["list"]}
    assert list(annotations) == ["Switches", "Switches that did not happen", "Dead engines"]
    for annotation in annotations.values():
        assert annotation["enable"]
        assert SELECTOR in annotation["expr"]
        assert annotation["datasource"]["uid"] == "${datasource}"


def metric_names() -> set[str]:
    """Every series that a server writes."""
    registry = CollectorRegistry()
    Metrics(registry)
    FakeMetrics(registry, "demo", 5)
    names = {f.name if f.type != "counter" else f"{f.name}_total" for f in registry.collect()}
    return {f"{name}{suffix}" for name in names for suffix in ("", "_bucket", "_sum", "_count")}


def test_every_metric_exists(dashboard: Json) -> None:
    text = json.dumps(dashboard)
    used = set(re.findall(r"(?:vllm:|specgate_)\w+", text))
    assert used
    assert used - metric_names() == set()


def test_panels_do_not_overlap(dashboard: Json) -> None:
    repeated = {"proposer": [str(i) for i in range(9)], "policy": [str(i) for i in range(5)]}
    taken: set[tuple[int, int]] = set()
    for shown in queries.layout(dashboard, {}, repeated):
        x, y, width, height = shown.position
        cells = {(i, j) for i in range(x, x + width) for j in range(y, y + height)}
        assert not cells & taken, shown.title
        assert x + width <= 24, shown.title
        taken |= cells


def test_identities_are_unique() -> None:
    dashboards = [queries.load(FOLDER / f"{name}.json") for name in NAMES]
    assert len({d["uid"] for d in dashboards}) == len({d["title"] for d in dashboards}) == 4
    for dashboard in dashboards:
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(ids) == len(set(ids))
        titles = [panel["title"] for panel in queries.panels(dashboard)]
        assert len(titles) == len(set(titles)), "the query test names panels by their titles"


def test_provisioning_has_one_default_source_and_the_folder() -> None:
    sources = yaml.safe_load((PROVISIONING / "datasources/prometheus.yml").read_text())
    (source,) = sources["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    assert source["jsonData"]["timeInterval"] == "15s"
    providers = yaml.safe_load((PROVISIONING / "dashboards/specgate.yml").read_text())
    (provider,) = providers["providers"]
    assert provider["type"] == "file"
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"


def test_a_repeated_panel_is_laid_out_for_each_value() -> None:
    dashboard = copy.deepcopy(queries.load(FOLDER / "proposers.json"))
    shown = queries.layout(dashboard, {}, {"proposer": ["a", "b", "c", "d", "e"]})
    repeated = [s for s in shown if s.title.startswith("Acceptance by position: ")]
    assert [s.title[-1] for s in repeated] == list("abcde")
    assert repeated[4].position[0] == 0
    assert repeated[4].position[1] == repeated[0].position[1] + 8
    assert 'proposer=~"e"' in repeated[4].queries[0].expr


def test_the_page_of_the_dashboards_is_sound() -> None:
    page = "deploy/grafana/README.md"
    pages = {page: (ROOT / page).read_text("utf-8")}
    assert documentation.broken_links(ROOT, pages) == []
    assert documentation.wrong_paths(ROOT, pages) == []
    assert documentation.private_places(pages) == []
