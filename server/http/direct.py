"""Which requests come straight from this machine, as far as can be seen of them.

A server without keys trusts its own machine. A proxy on that machine passes on what others send,
and a web page on it may call by a name of its own that leads here (DNS rebinding). Their requests
differ in what they say, so what is not known to come from a direct client is not trusted.
"""

from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from engine_adapter.seam.text import truncate

_DIRECT_HEADERS = frozenset(
    {
        *("accept", "authorization", "baggage", "cache-control", "connection", "content-length"),
        *("content-type", "cookie", "date", "dnt", "expect", "host", "http2-settings"),
        *("idempotency-key", "keep-alive", "origin", "pragma", "priority", "purpose", "range"),
        *("referer", "save-data", "te", "transfer-encoding", "upgrade"),
        *("upgrade-insecure-requests", "user-agent", "x-requested-with"),
        *("openai-organization", "openai-project", "postman-token", "request-id", "x-request-id"),
        *("b3", "sentry-trace", "traceparent", "tracestate"),
        *("x-api-key", "x-specgate-proposer", "x-specgate-num-speculative-tokens"),
    }
)
_DIRECT_PREFIXES = ("accept-", "anthropic-", "if-", "sec-", "x-b3-", "x-datadog-", "x-stainless-")
"""The headers that browsers, command lines, client libraries and their tracing send by themselves.

Proxies add others: there are dozens of names for the address of their client, and any new one
must count too.
"""


def is_loopback(host: str) -> bool:
    """Whether an address, or `localhost` and names in it, can be reached from this machine only."""
    if f".{host.removesuffix('.').lower()}".endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def names_loopback(headers: Headers) -> bool:
    """Whether `Host` is this machine, or missing: every browser sends it."""
    return "host" not in headers or _is_loopback_url(f"//{headers['host']}")


def indirect(scope: Scope) -> str | None:
    """Why a request may not come straight from this machine, or `None`."""
    headers, client = Headers(scope=scope), scope.get("client")
    if client is None or not is_loopback(client[0]):
        return "it comes from another machine"
    if not names_loopback(headers) or "host" not in headers:
        return "its Host is not a loopback address"
    if "origin" in headers and not _is_loopback_url(headers["origin"]):
        return "a page of another origin sends it"
    for name in headers:
        if name not in _DIRECT_HEADERS and not name.startswith(_DIRECT_PREFIXES):
            return f"its header {truncate(name)} may be a proxy's"
    # Today's clients speak HTTP/1.1; nginx speaks 1.0 to what is behind it unless told otherwise.
    # Lines of other versions, such as 0.9, are in no client's requests.
    if (version := scope.get("http_version")) != "1.1":
        return f"it is HTTP/{version}, which proxies speak"
    return None


@lru_cache(maxsize=64)
def _is_loopback_url(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
