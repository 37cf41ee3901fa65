"""`/metrics` in both formats that Prometheus requests."""

from collections.abc import Callable, Iterable

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from tests.server.gateway import Gateway

Parse = Callable[[str], Iterable[Metric]]


PROMETHEUS_2 = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
PROMETHEUS_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,*/*;q=0.1"


@pytest.mark.parametrize(
    ("accept", "content_type", "parse"),
    [
        ("*/*", "text/plain; version=0.0.4", plain_text),
        (PROMETHEUS_2, "application/openmetrics-text; version=1.0.0", openmetrics),
        (PROMETHEUS_3, "application/openmetrics-text; version=1.0.0", openmetrics),
    ],
)
async def test_it_shows_our_series_and_the_engines_by_their_names(
    gateway: Gateway, accept: str, content_type: str, parse: Parse
) -> None:
    await gateway.complete(max_tokens=30)
    response = await gateway.client.get("/metrics", headers={"Accept": accept})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith(content_type)
    samples = [sample for family in parse(response.text) for sample in family.samples]
    ours = sum(s.value for s in samples if s.name == "specgate_spec_decode_draft_tokens_total")
    engines = sum(s.value for s in samples if s.name == "vllm:spec_decode_num_draft_tokens_total")
    assert ours == engines > 0


@pytest.mark.parametrize(("accept", "parse"), [("*/*", plain_text), (PROMETHEUS_3, openmetrics)])
async def test_it_shows_only_the_series_that_are_asked_for(
    gateway: Gateway, accept: str, parse: Parse
) -> None:
    await gateway.complete(max_tokens=30)
    names = ["specgate_spec_decode_draft_tokens_total", "vllm:num_requests_running", "no_such"]
    response = await gateway.client.get(
        "/metrics", params={"name[]": names}, headers={"Accept": accept}
    )
    samples = [sample for family in parse(response.text) for sample in family.samples]
    assert {sample.name for sample in samples} == set(names[:2])
    assert sum(sample.value for sample in samples) > 0
