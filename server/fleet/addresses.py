"""Where the replicas of a fleet are: URLs, and names that stand for several addresses.

A headless Kubernetes service is such a name: DNS answers with the address of every ready pod.
"""

import asyncio
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from server.http.direct import is_loopback

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """One replica's address.

    Attributes:
        url: without a slash at the end; its host is an address if a name was looked up.
        server_name: the name that was looked up, which a certificate must have; otherwise `None`.
    """

    url: str
    server_name: str | None = None


def check_url(url: str) -> SplitResult:
    """The parts of a server's URL. Raises `ValueError` for one that cannot be called."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError("it must begin with http:// or https:// and name a host")
    if parts.username or parts.password:
        raise ValueError("it must not have a user or a password: errors show the address")
    _ = parts.port  # raises for a port that does not exist
    return parts


async def resolve(urls: Iterable[str]) -> list[Address]:
    """The addresses that the URLs stand for, each once, in order.

    A name stands for all its addresses of one family: a pod with two families has two addresses.
    A loopback name is one server.

    Raises:
        ValueError: a URL cannot be called.
        OSError: a name has no address; the message has the URL.
    """
    address_lists = await asyncio.gather(*(_resolve(url.rstrip("/")) for url in urls))
    return list(dict.fromkeys(address for addresses in address_lists for address in addresses))


async def _resolve(url: str) -> list[Address]:
    parts = check_url(url)
    host = parts.hostname or ""
    if is_loopback(host) or _is_address(host):
        return [Address(url)]
    port = parts.port or _PORTS[parts.scheme]
    loop = asyncio.get_running_loop()
    try:
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OSError(f"{url}: the name {host} has no address: {error.strerror}") from None
    family = infos[0][0]
    hosts = dict.fromkeys(str(info[4][0]) for info in infos if info[0] == family)
    return [
        Address(
            parts._replace(netloc=f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}").geturl(), host
        )
        for ip in sorted(hosts)
    ]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
