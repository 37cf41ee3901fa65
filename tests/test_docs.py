"""The documentation is complete and true where that can be checked.

`test_documentation.py` shows that each check can fail.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.routing import Route

from benchmarks.commands import gpu
from benchmarks.commands.load_arguments import make_parser
from benchmarks.load.workloads import WORKLOADS
from engine_adapter.fake.metrics import FakeMetrics
from engine_adapter.proposers.contract import RESERVED_NAMES
from engine_adapter.proposers.methods import METHODS
from engine_adapter.seam.config import RESERVED_ARGUMENTS
from engine_adapter.vllm_engine import compat
from server.control.records import (
    Drain,
    PolicyRecord,
    PolicyStatus,
    ProposerRecord,
    SwitchRecord,
    SwitchResult,
)
from server.control.types import SwitchMode
from server.fleet.desired import DesiredState
from server.fleet.replica import Checked, FleetStatus, ReplicaState
from server.openai.usage import speculative_decoding
from server.schema import admin, fleet, policy
from server.schema.batches import BatchRequest, OutputExpiresAfter
from server.schema.chat import ChatCompletionRequest, DetokenizeRequest, TokenizeRequest
from server.schema.completions import CompletionRequest
from server.schema.generation_body import SpecDecode, StreamOptions
from server.schema.response_items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    MessageItem,
    ReasoningItem,
)
from server.schema.responses import FunctionTool, ResponsesRequest
from server.settings import Settings, flag
from server.settings.sources import load_settings
from server.settings.vllm_flags import ALWAYS_SO, INSTEAD
from server.telemetry.metrics import Metrics
from server.telemetry.rolling_stats import RollingStats
from tests import documentation as checks
from tests.server.gateway import build

ROOT = Path(__file__).resolve().parent.parent
PAGES = checks.read(ROOT)
README, API = PAGES["README.md"], PAGES["docs/api.md"]
METRICS, PROPOSERS = PAGES["docs/metrics.md"], PAGES["docs/proposers.md"]

NOT_SETTINGS = (
    *("--concurrency", "--help", "--config", "--url", "--watch", "--json", "--on-timeout"),
    *("--all", "--policies", "--write-state"),
    *("--noise", "--outliers", "--starts"),
    "--no-console",
    "--full-attention-indices",
)
"""Flags that are not settings: of `specgate serve`, of the commands that ask a server, of other
benchmarks, and of the library `speculators`."""

OF_THE_ENGINE = (
    *("--async-scheduling", "--hf-overrides", "--reasoning-config", "--attention-backend"),
    *("--allowed-media-domains", "--limit-mm-per-prompt", "--media-io-kwargs"),
    "--mm-processor-kwargs",
    *("--pipeline-parallel-size", "--decode-context-parallel-size"),
)
"""Flags of vLLM's engine arguments that pages name, and that are no settings."""

BENCH_FLAGS = {flag for action in make_parser()._actions for flag in action.option_strings}
"""Flags of `specgate bench load`."""

GPU_FLAGS = {flag for action in gpu.make_parser()._actions for flag in action.option_strings} - {
    *("-h", "--help")
}
"""Flags of `specgate bench gpu`."""

VLLM_NAMES = (
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
)
"""What vLLM's dashboards and `vllm bench serve` read."""


def families(registry: CollectorRegistry) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name as scraped -> type and labels."""
    found = {}
    for collector in registry._collector_to_names:
        (family,) = collector.describe()  # type: ignore[attr-defined]
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = (family.type, collector._labelnames)  # type: ignore[attr-defined]
    return found


@pytest.fixture(scope="module")
def own_metrics() -> dict[str, tuple[str, tuple[str, ...]]]:
    registry = CollectorRegistry()
    Metrics(registry)
    return families(registry)


@pytest.fixture(scope="module")
def vllm_metrics() -> dict[str, tuple[str, tuple[str, ...]]]:
    registry = CollectorRegistry()
    FakeMetrics(registry, "demo", 5)
    return families(registry)


def test_every_page_is_read_and_linked() -> None:
    assert {"README.md", "CONTRIBUTING.md", "demo/README.md", "docs/request-lifecycle.md"} <= set(
        PAGES
    )
    linked = {page for page in PAGES if f"({page})" in README}
    lab = PAGES["docs/lab/README.md"]
    linked |= {page for page in PAGES if f"({page.removeprefix('docs/lab/')})" in lab}
    assert set(PAGES) - linked == {"README.md"}


def test_every_route_is_documented() -> None:
    app, _, _ = build()
    routes = [route for route in app.routes if isinstance(route, Route)]
    assert len(routes) == len(app.routes) > 10
    for route in routes:
        for method in (route.methods or set()) - {"HEAD"}:
            path = route.path_format
            assert f"`{method} {path}`" in API, f"{method} {path} is not in docs/api.md"


def test_every_documented_route_exists() -> None:
    app, _, _ = build()
    have = {
        f"{method} {route.path_format}"
        for route in app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
    }
    for cells in checks.rows(API):
        name = cells[0].partition("](")[0].strip("[`")
        if name.startswith(("GET /", "POST /", "PUT /", "DELETE /")):
            assert name in have


BODIES = (
    CompletionRequest,
    ChatCompletionRequest,
    ResponsesRequest,
    TokenizeRequest,
    DetokenizeRequest,
    BatchRequest,
)
PARTS = (
    SpecDecode,
    StreamOptions,
    OutputExpiresAfter,
    FunctionTool,
    MessageItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    ReasoningItem,
    admin.SwitchRequest,
    admin.SpecMethodResponse,
    fleet.CheckRequest,
    fleet.FleetMethodRequest,
    DesiredState,
    Checked,
    FleetStatus,
    ReplicaState,
    admin.Proposer,
    SwitchResult,
    Drain,
    SwitchRecord,
    ProposerRecord,
    PolicyRecord,
    PolicyStatus,
    RollingStats,
    policy.PolicyRequest,
    policy.PolicyResponse,
    policy.RoutingRule,
    policy.ExplainRequest,
    policy.ExplainResponse,
    policy.RuleVerdict,
)


@pytest.mark.parametrize("model", [*BODIES, *PARTS], ids=lambda model: model.__name__)
def test_every_field_is_documented(model: Any) -> None:
    skipped = {"previous"} if model is SwitchRecord else set()
    if model is StreamOptions:
        # Known in order to be refused.
        skipped = {"include_obfuscation"}
    if dataclasses.is_dataclass(model):
        fields = {field.name for field in dataclasses.fields(model)} - skipped
    else:
        fields = set(model.model_fields) - skipped
    assert [f for f in sorted(fields) if f"`{f}`" not in API and f'"{f}"' not in API] == []


def test_every_figure_of_a_response_is_documented() -> None:
    stats = SimpleNamespace(by_proposer={}, decode_steps=0, decode_tokens=0)
    figures = speculative_decoding(stats, "none", 0)  # type: ignore[arg-type]
    assert len(figures) == 10
    assert checks.missing(API, figures) == []


def test_every_mode_of_switching_is_documented() -> None:
    assert [mode for mode in SwitchMode if f"- `{mode}`: " not in API] == []
    assert [mode for mode in SwitchMode if f"`{mode}`" not in README] == []


def test_every_error_code_is_documented_and_every_documented_one_exists() -> None:
    paths = [*ROOT.glob("server/**/*.py"), *ROOT.glob("engine_adapter/*/*.py")]
    sources = [path.read_text() for path in paths]
    table = [cells for cells in checks.rows(checks.section(API, "Errors")) if len(cells) == 3]
    documented = {code.strip("`") for cells in table[2:] for code in cells[1].split(", ")}
    raised = set(checks.error_codes(sources))
    assert len(raised) > 10
    assert raised - documented == set()
    assert [c for c in documented - {"null"} if not any(f'"{c}"' in s for s in sources)] == []


def test_every_metric_of_ours_is_in_a_table_with_type_and_labels(
    own_metrics: dict[str, tuple[str, tuple[str, ...]]],
) -> None:
    assert len(own_metrics) == 64
    table = {cells[0]: cells for cells in checks.rows(METRICS)}
    for name, (kind, labels) in own_metrics.items():
        cells = table[f"`{name}`"]
        assert cells[1] == kind
        assert [label for label in labels if f"`{label}`" not in cells[2]] == [], name


def test_every_metric_of_ours_is_queried(
    own_metrics: dict[str, tuple[str, tuple[str, ...]]],
) -> None:
    queries = "\n".join(checks.blocks(METRICS, "promql"))
    assert [name for name in own_metrics if name not in queries] == []


def test_vllms_metrics_are_documented(
    vllm_metrics: dict[str, tuple[str, tuple[str, ...]]],
) -> None:
    table = {cells[0]: cells for cells in checks.rows(METRICS)}
    assert {f"vllm:{name}" for name in VLLM_NAMES} <= set(vllm_metrics)
    for name, (kind, labels) in vllm_metrics.items():
        cells = table[f"`{name}`"]
        assert cells[1] == kind
        more = set(labels) - {"model_name", "engine"}
        assert [label for label in more if f"`{label}`" not in cells[2]] == [], name


def test_no_metric_is_invented(
    own_metrics: dict[str, tuple[str, tuple[str, ...]]],
    vllm_metrics: dict[str, tuple[str, tuple[str, ...]]],
) -> None:
    assert checks.unknown_metrics(PAGES, [*own_metrics, *vllm_metrics]) == []


def test_every_option_of_every_proposer_is_documented() -> None:
    assert checks.undocumented_options(PROPOSERS, METHODS) == []
    assert checks.missing(PROPOSERS, RESERVED_NAMES) == []


def test_what_is_refused_at_start_is_documented() -> None:
    refused = checks.section(PROPOSERS, "Refused at start")
    assert checks.missing(refused, set(RESERVED_ARGUMENTS)) == []


def test_every_setting_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load_settings(["--help"], {})
    text = " ".join(capsys.readouterr().out.split())
    for name, field in Settings.model_fields.items():
        assert flag(name) in text, name
        words = (field.description or "").split()
        assert len(words) >= 2, f"{name} has no description"
        assert words[0] in text, name


def test_every_flag_of_the_load_benchmark_is_in_its_tables() -> None:
    cells = " ".join(row[0] for row in checks.rows(PAGES["docs/benchmarks.md"]))
    flags = {f for f in BENCH_FLAGS if f.startswith("--")} - {"--help"}
    assert [f for f in sorted(flags) if not re.search(rf"`{f}[ `]", cells)] == []


def test_every_flag_of_the_gpu_check_is_in_its_table() -> None:
    cells = " ".join(row[0] for row in checks.rows(PAGES["docs/gpu.md"]))
    assert [f for f in sorted(GPU_FLAGS) if not re.search(rf"`{f}[ `]", cells)] == []


def test_every_workload_is_documented() -> None:
    assert checks.missing(PAGES["docs/benchmarks.md"], WORKLOADS) == []


def test_only_settings_that_exist_are_documented() -> None:
    of_vllm = {flag(name) for name in (*ALWAYS_SO, *INSTEAD, *RESERVED_ARGUMENTS)}
    flags = (
        {flag(name) for name in Settings.model_fields}
        | {*NOT_SETTINGS, *OF_THE_ENGINE}
        | (BENCH_FLAGS | GPU_FLAGS)
    )
    # One page says what is refused; no other may name it.
    migration = "docs/from-vllm-serve.md"
    assert checks.unknown_flags({migration: PAGES[migration]}, flags | of_vllm) == []
    # Two pages have flags of the demo's own commands.
    others = ("demo/README.md", "docs/lab/demo.md", migration)
    pages = {page: text for page, text in PAGES.items() if page not in others}
    assert checks.unknown_flags(pages, flags) == []


def test_every_flag_of_vllms_server_is_on_its_page() -> None:
    """Those of engine arguments are compared with vLLM's parser: see settings/test_flags.py."""
    rows = {row[0]: row[1] for row in checks.rows(PAGES["docs/from-vllm-serve.md"])}
    for name, reason in {**ALWAYS_SO, **INSTEAD}.items():
        assert rows[f"`{flag(name)}`"] == reason
    for name in RESERVED_ARGUMENTS.keys() - {"speculative_config", "stat_loggers"}:
        assert rows[f"`{flag(name)}`"] == RESERVED_ARGUMENTS[name]


def test_every_promise_of_security_names_a_test() -> None:
    assert checks.untested_promises(ROOT, PAGES["SECURITY.md"]) == []


WHOLE: list[Callable[[], Iterable[str]]] = [
    lambda: checks.broken_links(ROOT, PAGES),
    lambda: checks.wrong_paths(ROOT, PAGES),
    lambda: checks.private_places(PAGES),
    lambda: checks.unreadable_blocks(PAGES),
]


@pytest.mark.parametrize("check", WHOLE, ids=["links", "paths", "places", "blocks"])
def test_pages_are_sound(check: Callable[[], Iterable[str]]) -> None:
    assert list(check()) == []


def test_pages_that_name_releases_of_vllm_name_all_supported_ones() -> None:
    """Statements about one release, and figures of one, are on two pages and in the laboratory."""
    about_one = {"performance.md", "upgrading-vllm.md"}
    supported = f"vLLM {' and '.join(compat.SUPPORTED)}"
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    named = {
        page.name: set(re.findall(r"vLLM 0\.\d+(?:(?:, | and )0\.\d+)*", page.read_text()))
        for page in pages
        if page.name not in about_one
    }
    assert {name: wrong for name, found in named.items() if (wrong := found - {supported})} == {}
    for name in ("README.md", "install.md", "models.md", "proposers.md"):
        assert supported in named[name], name
    assert supported in (ROOT / "docs" / "upgrading-vllm.md").read_text()
