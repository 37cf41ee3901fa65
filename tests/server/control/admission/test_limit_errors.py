"""The errors of limits: each is listed under its status, and has a series from the beginning."""

from prometheus_client import CollectorRegistry

from server.control.admission import limit_errors
from server.control.admission.limit_errors import (
    LIMIT_CODES,
    ConcurrencyLimit,
    FirstTokenTimeout,
    QueueTimeout,
    RateLimit,
    RequestTimeout,
    TooManyRequests,
)
from server.errors import ApiError
from server.telemetry.admission_metrics import AdmissionMetrics
from server.telemetry.metric_maker import MetricMaker


def test_no_limit_is_forgotten() -> None:
    classes = [
        found
        for found in vars(limit_errors).values()
        if isinstance(found, type)
        and issubclass(found, ApiError)
        and found.__module__ == limit_errors.__name__
        and found is not TooManyRequests
    ]
    listed = [code for codes in LIMIT_CODES.values() for code in codes]
    assert sorted(vars(found)["code"] for found in classes) == sorted(listed)
    registry = CollectorRegistry()
    AdmissionMetrics(MetricMaker(registry))
    for code in listed:
        assert registry.get_sample_value("specgate_limited_requests_total", {"reason": code}) == 0


def test_each_is_listed_under_its_status() -> None:
    for error in (
        *(ConcurrencyLimit(1), RateLimit(1, 1.0), QueueTimeout(1, None)),
        *(FirstTokenTimeout(1), RequestTimeout(1)),
    ):
        assert error.code in LIMIT_CODES[error.status]
