"""The gateway's metrics and their names."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from engine_adapter.seam.counts import CompiledGrammars, ProposerCounts, StepKind, StepReport
from server.control.types import SelectedBy
from server.telemetry import (
    admission_metrics,
    batch_metrics,
    connection_metrics,
    file_metrics,
    http_metrics,
    media_metrics,
    response_metrics,
    usage_metrics,
)
from server.telemetry import metrics as module
from server.telemetry.metrics import Metrics

STEP = StepReport(
    kind=StepKind.VERIFY,
    seconds=0.02,
    verified={
        "ngram": ProposerCounts(2, 6, 4, (2, 1, 1), 6),
        "draft": ProposerCounts(1, 4, 0, (0, 0, 0, 0), 1),
        "none": ProposerCounts(emitted=3),
    },
    draft_seconds={"draft": 0.004},
    proposed_tokens={"draft": 4},
    catchup_tokens={"draft": 17},
)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    metrics = Metrics(registry)
    metrics.declare_proposers(["ngram", "draft"])
    return metrics


def test_each_proposers_series_exist_at_zero_from_the_start(
    registry: CollectorRegistry, metrics: Metrics
) -> None:
    for name in ("drafts", "draft_tokens", "accepted_tokens", "emitted_tokens"):
        for proposer in ("ngram", "draft"):
            sample = f"specgate_spec_decode_{name}_total"
            assert registry.get_sample_value(sample, {"proposer": proposer}) == 0
    for proposer in ("ngram", "draft", "none"):
        for selected_by in ("request", "active"):
            labels = {"proposer": proposer, "selected_by": selected_by}
            assert registry.get_sample_value("specgate_requests_total", labels) == 0


def test_a_step_is_counted_by_proposer(registry: CollectorRegistry, metrics: Metrics) -> None:
    metrics.on_step(STEP)
    metrics.on_step(STEP)

    def value(name: str, proposer: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"proposer": proposer, **labels})

    assert value("specgate_spec_decode_drafts_total", "ngram") == 4
    assert value("specgate_spec_decode_draft_tokens_total", "ngram") == 12
    assert value("specgate_spec_decode_accepted_tokens_total", "ngram") == 8
    assert value("specgate_spec_decode_accepted_tokens_total", "draft") == 0
    position = "specgate_spec_decode_accepted_tokens_per_position_total"
    assert [value(position, "ngram", position=str(i)) for i in range(3)] == [4, 2, 2]
    assert value("specgate_spec_decode_emitted_tokens_total", "none") == 6
    assert value("specgate_proposer_draft_seconds_sum", "draft") == pytest.approx(0.008)
    assert value("specgate_proposer_draft_seconds_count", "ngram") == 0
    assert value("specgate_proposer_catchup_tokens_total", "draft") == 34
    assert registry.get_sample_value("specgate_step_seconds_count", {"kind": "verify"}) == 2
    assert registry.get_sample_value("specgate_step_seconds_count", {"kind": "decode"}) == 0


def test_plain_decoding_has_no_drafts_to_count(
    registry: CollectorRegistry, metrics: Metrics
) -> None:
    metrics.on_step(STEP)
    labels = {"proposer": "none"}
    assert registry.get_sample_value("specgate_spec_decode_drafts_total", labels) is None
    assert "none" not in metrics.rolling_stats()


def test_rolling_stats_are_computed_from_the_steps(metrics: Metrics) -> None:
    metrics.on_step(STEP)
    ngram = metrics.rolling_stats()["ngram"]
    assert ngram.acceptance_rate == pytest.approx(4 / 6)
    assert ngram.mean_acceptance_length == pytest.approx(1 + 4 / 2)
    assert ngram.system_efficiency == pytest.approx((4 + 2) / (6 + 2))


def test_a_proposer_that_has_not_drafted_has_no_ratios(metrics: Metrics) -> None:
    figures = metrics.rolling_stats()["draft"]
    assert (figures.drafts, figures.acceptance_rate, figures.system_efficiency) == (0, None, None)


def test_admitted_requests_are_counted(registry: CollectorRegistry, metrics: Metrics) -> None:
    metrics.count_request("ngram", SelectedBy.REQUEST)
    labels = {"proposer": "ngram", "selected_by": "request"}
    assert registry.get_sample_value("specgate_requests_total", labels) == 1


def test_a_quarantine_is_shown_until_a_load_an_unload_or_a_new_process_ends_it(
    registry: CollectorRegistry, metrics: Metrics
) -> None:
    def quarantined(name: str) -> float | None:
        return registry.get_sample_value("specgate_proposer_quarantined", {"proposer": name})

    ends: list[Callable[[], None]] = [
        lambda: metrics.declare_proposers(["draft"]),
        lambda: metrics.forget_proposer("draft"),
        lambda: metrics.set_engine(up=True, given_up=False),
    ]
    for end in ends:
        metrics.declare_proposers(["draft"])
        metrics.set_engine(up=True, given_up=False, quarantined={"draft"})
        metrics.on_step(STEP)
        metrics.on_restart(False)
        assert (quarantined("draft"), quarantined("ngram")) == (1, 0)
        end()
        assert quarantined("draft") == 0
    assert quarantined("none") is None


def test_the_info_metric_shows_one_active_method(
    registry: CollectorRegistry, metrics: Metrics
) -> None:
    metrics.set_spec_method("ngram")
    metrics.set_spec_method("draft")
    lines = [
        line
        for line in generate_latest(registry).decode().splitlines()
        if line.startswith("specgate_spec_method_info")
    ]
    assert lines == ['specgate_spec_method_info{spec_method="draft"} 1.0']


def test_two_servers_in_one_process_share_nothing() -> None:
    one, other = CollectorRegistry(), CollectorRegistry()
    Metrics(one).count_request("ngram", SelectedBy.ACTIVE)
    Metrics(other)
    labels = {"proposer": "ngram", "selected_by": "active"}
    assert one.get_sample_value("specgate_requests_total", labels) == 1
    assert other.get_sample_value("specgate_requests_total", labels) is None


def test_every_metric_has_a_promql_query(registry: CollectorRegistry, metrics: Metrics) -> None:
    modules = (
        *(module, http_metrics, admission_metrics, connection_metrics, usage_metrics),
        *(file_metrics, response_metrics, batch_metrics, media_metrics),
    )
    documentation = " ".join(str(each.__doc__) for each in modules)
    for family in registry.collect():
        assert family.name in documentation, family.name


def test_the_compiled_grammars_of_the_last_step_are_shown(
    registry: CollectorRegistry, metrics: Metrics
) -> None:
    def values() -> tuple[float | None, float | None]:
        names = ("specgate_compiled_grammars", "specgate_compiled_grammar_bytes")
        number, size = (registry.get_sample_value(name) for name in names)
        return number, size

    assert values() == (0, 0)
    metrics.on_step(replace(STEP, grammars=CompiledGrammars(3, 5000)))
    assert values() == (3, 5000)
    metrics.on_restart(succeeded=False)
    assert values() == (3, 5000)
    metrics.on_restart(succeeded=True)
    assert values() == (0, 0), "a new process has compiled nothing"
