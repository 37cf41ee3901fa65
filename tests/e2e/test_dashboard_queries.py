"""A real server's `/metrics` page has all that vLLM's dashboards and our own rules ask for."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from engine_adapter.seam.config import RESERVED_ARGUMENTS
from tests.deploy.prometheus.rules import RECORDS, rules
from tests.deploy.prometheus.selectors import Series, missing, selectors, series
from tests.e2e.served import MODEL, Served

pytestmark = [pytest.mark.engine, pytest.mark.prove]

HERE = Path(__file__).parent
QUERIES: dict[str, dict[str, list[str]]] = yaml.safe_load(
    (HERE.parent / "deploy/prometheus/vllm_dashboards.yml").read_text()
)
OPTIONAL = ("enable_mfu_metrics", "kv_cache_metrics", "lora")
"""What some queries need: these options bring their series."""

OPTIONS = (
    "--enable-lora",
    "--engine-args",
    '{"enable_mfu_metrics": true, "kv_cache_metrics": true, "kv_cache_metrics_sample": 1.0}',
)

NEVER = ("kv_connector", "operations")
"""What no server of Specgate's has: it refuses KV connectors, and has no routes for sleep mode."""

LATER = {("http_requests_total", "status"), ("specgate_http_requests_total", "status")}
"""A status has series from its first response on; a real server is not made to fail for that."""


@pytest.fixture(scope="module")
def page(served: Served) -> Series:
    """The server's series after a few requests."""
    return traffic(served)


def traffic(served: Served) -> Series:
    """The server's series after requests that draft, that stream, and that fail."""
    for proposer in ("ngram", "draft", "none"):
        body = {"model": MODEL, "prompt": "def f(x):\n", "max_tokens": 24}
        served.post("/v1/completions", body | {"spec_decode": {"proposer": proposer}})
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
    served.post("/v1/chat/completions", chat | {"stream": True})
    return series(served.get("/metrics").text)


def queries(*needs: str) -> Iterator[tuple[str, str]]:
    """(dashboard, query) of those needs."""
    for dashboard, parts in QUERIES.items():
        for need in needs:
            for query in parts.get(need, ()):
                yield dashboard, query


def test_every_need_is_known() -> None:
    needs = {need for parts in QUERIES.values() for need in parts}
    assert needs == {"always", *OPTIONAL, *NEVER}
    assert len(list(queries(*needs))) == 295
    assert len(list(queries("always"))) == 236


def test_every_query_of_vllms_dashboards_has_its_series(page: Series) -> None:
    findings = [
        f"{dashboard}: {finding}"
        for dashboard, query in queries("always")
        for finding in missing(query, page, LATER)
    ]
    assert sorted(set(findings)) == []


def test_what_a_default_server_lacks_is_really_missing(page: Series) -> None:
    # vLLM declares the counters of model FLOPs in any case; without the option they stay at 0.
    lacks = {*OPTIONAL, *NEVER} - {"enable_mfu_metrics"}
    assert [query for _, query in queries(*lacks) if not missing(query, page)] == []
    assert "kv_transfer_config" in RESERVED_ARGUMENTS


def test_every_rule_has_its_series(page: Series) -> None:
    findings = []
    for rule in rules():
        names = {selector.name for selector in selectors(rule["expr"])}
        if not names & set(RECORDS):
            findings += missing(rule["expr"], page, LATER)
    assert findings == []


def test_options_bring_the_other_series(tmp_path: Path) -> None:
    served = Served.start_beside(tmp_path / "server.log", *OPTIONS)
    try:
        page = traffic(served)
        flops = served.scrape()("vllm:estimated_flops_per_gpu_total")
    finally:
        assert served.stop() == 0, served.tail()
    findings = [finding for _, query in queries(*OPTIONAL) for finding in missing(query, page)]
    assert sorted(set(findings)) == []
    assert flops > 0
