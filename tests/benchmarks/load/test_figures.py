"""The figures of a side."""

import pytest

from benchmarks.load.figures import distribution, side_figures
from tests.benchmarks.load.made import failed, made_pass, sample


def test_percentiles_are_interpolated() -> None:
    found = distribution([float(i) for i in range(101)])
    assert found is not None
    assert (found.mean, found.p50, found.p95, found.p99, found.count) == (50, 50, 95, 99, 101)
    assert distribution([]) is None


def test_throughput_counts_all_tokens_and_only_good_requests() -> None:
    passes = [
        made_pass("a", [sample(0), failed(1, "429")], seconds=2.0),
        made_pass("a", [sample(0), sample(1, error="timeout")], seconds=2.0),
    ]
    figures = side_figures(passes, {})
    assert figures.errors == {"429": 1, "timeout": 1}
    assert (figures.requests, figures.tokens, figures.seconds) == (4, 33, 4.0)
    assert figures.tokens_per_s == pytest.approx(33 / 4)
    assert figures.requests_per_s == pytest.approx(2 / 4)
    assert figures.good_share is None


def test_latencies_leave_failed_requests_out() -> None:
    figures = side_figures([made_pass("a", [sample(0), sample(1, 9999.0, error="timeout")])], {})
    assert figures.latencies.e2e is not None
    assert (figures.latencies.e2e.mean, figures.latencies.e2e.count) == (100.0, 1)
    assert figures.latencies.itl is not None
    assert (figures.latencies.itl.p50, figures.latencies.itl.count) == (pytest.approx(9.0), 10)


def test_a_request_is_good_if_it_meets_every_objective() -> None:
    samples = [
        sample(0, 100.0),
        sample(1, 300.0),
        sample(2, 100.0, ttft_ms=60.0),
        failed(3, "500"),
        sample(4, 10.0, tokens=1),
    ]
    figures = side_figures([made_pass("a", samples, seconds=2.0)], {"ttft": 50.0, "tpot": 10.0})
    assert figures.good_share == pytest.approx(2 / 5)
    assert figures.good_per_s == pytest.approx(1.0)
    assert side_figures([made_pass("a", samples)], {"e2e": 99.0}).good_share == pytest.approx(1 / 5)


def test_tokens_per_step_weighs_by_steps() -> None:
    samples = [
        sample(0, tokens=101, tokens_per_step=1.0),
        sample(1, tokens=101, tokens_per_step=4.0),
    ]
    figures = side_figures([made_pass("a", samples)], {})
    assert figures.tokens_per_step == pytest.approx(200 / 125)


def test_labels_and_proposers_are_counted_apart() -> None:
    draft = {"ngram": {"drafts": 2, "drafted": 8, "accepted": 3}}
    samples = [sample(0, drafts=draft), sample(1, drafts=draft), sample(2, 200.0, label="free")]
    figures = side_figures([made_pass("a", samples)], {})
    assert figures.drafts == {"ngram": {"drafts": 4, "drafted": 16, "accepted": 6}}
    assert {label: f.requests for label, f in figures.by_label.items()} == {"quote": 2, "free": 1}
    assert figures.by_label["free"].latencies.e2e is not None
    assert figures.by_label["free"].latencies.e2e.mean == 200.0
