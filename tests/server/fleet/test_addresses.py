"""What the addresses of a fleet stand for."""

import asyncio
import socket
from typing import Any

import pytest

from server.fleet.addresses import Address, resolve

V4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
V6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "")


def answer_with(monkeypatch: pytest.MonkeyPatch, *infos: Any) -> list[tuple[str, int]]:
    asked = []

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append((host, port))
        return list(infos)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    return asked


async def test_a_name_stands_for_every_address_once(monkeypatch: pytest.MonkeyPatch) -> None:
    infos = [(*V4, ("10.0.0.2", 8000)), (*V4, ("10.0.0.1", 8000)), (*V4, ("10.0.0.2", 8000))]
    asked = answer_with(monkeypatch, *infos)
    assert await resolve(["http://replicas:8000/"]) == [
        Address("http://10.0.0.1:8000", "replicas"),
        Address("http://10.0.0.2:8000", "replicas"),
    ]
    assert asked == [("replicas", 8000)]


async def test_a_pod_with_two_families_is_one_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, (*V6, ("fd00::1", 443, 0, 0)), (*V4, ("10.0.0.1", 443)))
    assert await resolve(["https://replicas"]) == [Address("https://[fd00::1]:443", "replicas")]


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "http://localhost:8000", "http://10.1.2.3", "http://[::1]:80"]
)
async def test_an_address_and_a_loopback_name_are_not_looked_up(url: str) -> None:
    assert await resolve([url, url]) == [Address(url)]


@pytest.mark.parametrize(
    "url", ["replicas:8000", "ftp://a", "http://", "http://user:key@host", "http://host:port"]
)
async def test_a_url_that_cannot_be_called_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"must|port|Port"):
        await resolve([url])


async def test_a_name_without_an_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    with pytest.raises(OSError, match="the name nobody has no address"):
        await resolve(["http://nobody:8000"])
