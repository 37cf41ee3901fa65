"""What a direct client of this machine looks like, and what does not look like one."""

from typing import Any

import pytest

from engine_adapter.seam.text import MAX_ECHO
from server.http.direct import indirect, is_loopback

CURL = {"host": "127.0.0.1:8000", "user-agent": "curl/8", "accept": "*/*"}
BROWSER = {
    "host": "localhost:8000",
    "connection": "keep-alive",
    "sec-ch-ua-platform": "Linux",
    "user-agent": "Mozilla/5.0",
    "accept": "*/*",
    "origin": "http://localhost:8000",
    "referer": "http://localhost:8000/console",
    "accept-encoding": "gzip, br",
    "accept-language": "en",
    "cookie": "another=application",
    "content-type": "application/json",
    "content-length": "2",
    "dnt": "1",
}
CLIENT = {
    "host": "[::1]:8000",
    "x-stainless-lang": "python",
    "idempotency-key": "1",
    "x-request-id": "r-1",
    "traceparent": "00-0-0-00",
}

PROXY_HEADERS = [
    *("Forwarded", "Via", "X-Real-IP", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"),
    *("CF-Connecting-IP", "CF-Ray", "CDN-Loop", "True-Client-IP", "X-Client-IP"),
    *("X-Original-Forwarded-For", "X-Original-Host", "X-Envoy-External-Address"),
    *(
        "X-Cluster-Client-IP",
        "Fastly-Client-IP",
        "Fly-Client-IP",
        "X-Azure-ClientIP",
        "X-ARR-LOG-ID",
    ),
    *("X-Amzn-Trace-Id", "X-ProxyUser-Ip", "WL-Proxy-Client-IP", "Proxy-Connection", "X-Scheme"),
    *("Client-IP", "X-Host", "X-Appengine-User-Ip", "Ali-CDN-Real-IP", "X-Some-New-Proxy"),
]


def scope(headers: dict[str, str], peer: str = "127.0.0.1", version: str = "1.1") -> Any:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return {"headers": raw, "client": (peer, 5000), "http_version": version}


@pytest.mark.parametrize("headers", [CURL, BROWSER, CLIENT], ids=["curl", "browser", "client"])
def test_a_direct_client_is_recognized(headers: dict[str, str]) -> None:
    assert indirect(scope(headers)) is None
    assert indirect(scope(headers, peer="::1")) is None


@pytest.mark.parametrize(
    "name",
    [
        *("Postman-Token", "sentry-trace", "b3", "x-b3-traceid", "x-datadog-trace-id"),
        *("request-id", "save-data", "OpenAI-Organization", "OpenAI-Project"),
    ],
)
def test_a_header_that_clients_send_by_themselves_is_direct(name: str) -> None:
    assert indirect(scope({**CURL, name: "1"})) is None


@pytest.mark.parametrize("name", PROXY_HEADERS)
def test_a_header_that_a_proxy_may_have_added_is_not_direct(name: str) -> None:
    reason = indirect(scope({**CURL, name: "127.0.0.1"}))
    assert reason == f"its header {name.lower()} may be a proxy's"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"peer": "10.0.0.7"}, "another machine"),
        ({"peer": "::ffff:10.0.0.7"}, "another machine"),
        ({"headers": {"host": "specgate.example"}}, "Host is not"),
        ({"headers": {"host": "127.0.0.1.example.org"}}, "Host is not"),
        ({"headers": {"host": "["}}, "Host is not"),
        ({"headers": {"accept": "*/*"}}, "Host is not"),
        ({"headers": {**CURL, "origin": "null"}}, "another origin"),
        ({"headers": {**CURL, "origin": "https://evil.example"}}, "another origin"),
        ({"version": "1.0"}, "HTTP/1.0"),
        ({"version": "0.9"}, "HTTP/0.9"),
        ({"version": "2.0"}, "HTTP/2.0"),
    ],
)
def test_other_requests_are_not_direct(changed: dict[str, Any], reason: str) -> None:
    found = indirect(scope(**{"headers": CURL, **changed}))
    assert found is not None
    assert reason in found


def test_a_request_without_a_peer_is_not_direct() -> None:
    assert indirect({"headers": [], "client": None}) is not None


def test_the_reason_repeats_little_of_a_header() -> None:
    reason = indirect(scope({**CURL, "x" * 10_000: "1"}))
    assert reason is not None
    assert len(reason) < MAX_ECHO + 50


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("localhost.", True),
        ("LocalHost", True),
        ("console.localhost", True),
        ("console.localhost.", True),
        ("notlocalhost", False),
        ("localhost..", False),
        ("host.docker.internal", False),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_loopback_addresses_are_recognized(host: str, expected: bool) -> None:
    assert is_loopback(host) == expected
