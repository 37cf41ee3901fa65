"""The check that queries are checked with: it finds what a page lacks."""

import pytest

from tests.deploy.prometheus.selectors import Selector, missing, selectors, series

PAGE = series("""\
# TYPE app_requests_total counter
app_requests_total{status="200",handler="/a"} 3
# TYPE app_seconds histogram
app_seconds_bucket{le="0.5"} 1
app_seconds_bucket{le="+Inf"} 1
app_seconds_count 1
app_seconds_sum 0.1
""")


def test_every_selector_of_a_query_is_found() -> None:
    query = (
        'sum by (le) (rate(a_bucket{le="1"}[$__rate_interval])) / on (x) group_left () '
        '(b > 0) or max_over_time(c{d=~"$e"}[1h:1m] offset 5m) unless {__name__="vllm:f"}'
    )
    assert selectors(query) == [
        Selector("a_bucket", (("le", "=", "1"),)),
        Selector("b", ()),
        Selector("c", (("d", "=~", "$e"),)),
        Selector("vllm:f", ()),
    ]


def test_a_text_that_is_not_promql_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\S"):
        selectors("sum by (le (rate(a[5m]))")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ('rate(app_requests_total{job=~"$job", status="200"}[5m])', []),
        ('app_requests_total{handler=~"$handler", status=~"2.."} > up', []),
        ('histogram_quantile(0.9, app_seconds_bucket{le!="0.5"})', []),
        ("app_request_total", ["no metric app_request_total"]),
        ("app_seconds", ["no metric app_seconds"]),
        ('app_requests_total{route="/a"}', ["app_requests_total has no label route"]),
        (
            'app_requests_total{status="5xx"}',
            ["app_requests_total has no series with status=5xx"],
        ),
        (
            'app_seconds_bucket{le=~"1.."}',
            ["app_seconds_bucket has no series with le=~1.."],
        ),
    ],
)
def test_what_a_page_lacks_is_told(query: str, found: list[str]) -> None:
    assert missing(query, PAGE) == found


def test_a_value_that_appears_later_may_be_missing_but_not_its_label() -> None:
    later = {("app_requests_total", "status"), ("app_requests_total", "route")}
    assert missing('app_requests_total{status="5xx"}', PAGE, later) == []
    assert missing('app_requests_total{route="/b"}', PAGE, later) != []
