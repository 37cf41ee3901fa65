"""Media behind http and https URLs, from allowed hosts only.

A server that fetches what a client names can be used to reach what the client cannot. So a host
must be allowed by name; its addresses must be public, each time they are asked for; the connection
goes to the address that was checked; and a redirect is a new URL with the same checks.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import urljoin, urlsplit

import httpx

from server.media.sources import MediaSource

MAX_BYTES = 20 * 2**20
"""The most bytes of a fetched file."""

MAX_REDIRECTS = 3

TIMEOUT_S = 10.0
"""Seconds for a file, with all its redirects."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host."""


_RESOLVERS = ThreadPoolExecutor(2, "media-hosts")
"""A resolver that hangs holds up no other work in threads."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a host, as the system resolves them. Raises `OSError`."""
    ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    entries = await asyncio.get_running_loop().run_in_executor(_RESOLVERS, ask)
    return [str(entry[4][0]) for entry in entries]


def is_public(address: str) -> bool:
    """Whether an address is one of the internet's, and not of this host or its networks."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(ip, "ipv4_mapped", None) or getattr(ip, "sixtofour", None)
    return ip.is_global and not ip.is_multicast and (mapped is None or is_public(str(mapped)))


class MediaFetcher:
    """Fetches media.

    Args:
        allowed_hosts: from which it may fetch.
        resolver: of host names.
        is_allowed_address: what an address must be.
    """

    def __init__(
        self,
        allowed_hosts: Collection[str],
        resolver: Resolve = resolve,
        is_allowed_address: Callable[[str], bool] = is_public,
    ) -> None:
        self._allowed = frozenset(host.lower() for host in allowed_hosts)
        self._resolve, self._is_allowed_address = resolver, is_allowed_address

    async def fetch(self, source: MediaSource) -> bytes:
        """The bytes behind a URL. Raises `InvalidField`."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._follow(source)
        except TimeoutError:
            raise source.unreachable(f"it took more than {TIMEOUT_S:g} seconds") from None
        except (httpx.HTTPError, OSError, UnicodeError) as error:
            raise source.unreachable(str(error) or type(error).__name__) from error

    async def _follow(self, source: MediaSource) -> bytes:
        url = source.url
        # No proxy of the environment: it would resolve the name again.
        async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S) as client:
            for _ in range(MAX_REDIRECTS + 1):
                request = await self._request(client, url, source)
                response = await client.send(request, stream=True, follow_redirects=False)
                try:
                    if not response.is_redirect:
                        return await _body(response, source)
                    url = urljoin(url, response.headers["location"])
                finally:
                    await response.aclose()
        raise source.unreachable(f"it was redirected more than {MAX_REDIRECTS} times")

    async def _request(
        self, client: httpx.AsyncClient, url: str, source: MediaSource
    ) -> httpx.Request:
        """The request, to an address of the URL's host that was checked."""
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").lower(), parts.port
        except ValueError:
            raise source.unreachable("it is not a URL") from None
        if parts.scheme not in ("http", "https") or not host:
            raise source.unreachable("only data, http and https URLs are read")
        if host not in self._allowed:
            allowed = "none is" if not self._allowed else f"{', '.join(sorted(self._allowed))} are"
            reason = f"its host is not allowed; {allowed} allowed (--allowed-media-domains)"
            raise source.unreachable(reason)
        port = port or (443 if parts.scheme == "https" else 80)
        addresses = await self._resolve(host, port)
        if not addresses or not all(map(self._is_allowed_address, addresses)):
            raise source.unreachable("its host has an address that is not public")
        address = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
        path = parts.path or "/"
        target = f"{parts.scheme}://{address}:{port}{path}" + (
            f"?{parts.query}" if parts.query else ""
        )
        headers = {"Host": parts.netloc.rpartition("@")[2], "Accept": f"{source.modality}/*"}
        return client.build_request(
            "GET", target, headers=headers, extensions={"sni_hostname": host}
        )


async def _body(response: httpx.Response, source: MediaSource) -> bytes:
    if response.status_code != 200:
        raise source.unreachable(f"its server answers {response.status_code}")
    chunks, size = [], 0
    async for chunk in response.aiter_bytes():
        size += len(chunk)
        if size > MAX_BYTES:
            raise source.unreachable(f"it has more than {MAX_BYTES} bytes")
        chunks.append(chunk)
    return b"".join(chunks)
