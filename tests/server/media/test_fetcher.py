"""Pictures behind URLs: what may be fetched, and from where."""

import asyncio
import http.server
import threading
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar

import pytest

from engine_adapter.seam.media import Modality
from server.errors import InvalidField
from server.media import fetcher as module
from server.media.fetcher import MAX_BYTES, MediaFetcher, is_public
from server.media.sources import MediaSource

PARAM = "messages.0.content.0.image_url.url"
HOST = "pictures.example"


class Pages(http.server.BaseHTTPRequestHandler):
    """Pictures, and what may come instead."""

    hosts: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.hosts.append(self.headers["host"])
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("location", self.path.removeprefix("/to/"))
            self.end_headers()
            return
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.end_headers()
        if self.path == "/slow":
            time.sleep(1.5)
        body = b"x" * (MAX_BYTES + 1) if self.path == "/large" else b"picture"
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


async def loopback(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


def local() -> MediaFetcher:
    """A fetcher for which this machine is the internet."""
    return MediaFetcher([HOST], loopback, lambda address: address == "127.0.0.1")


def picture(url: str) -> MediaSource:
    return MediaSource(Modality.IMAGE, PARAM, url)


async def refusal(fetcher: MediaFetcher, url: str) -> str:
    with pytest.raises(InvalidField) as caught:
        await fetcher.fetch(picture(url))
    assert (caught.value.param, caught.value.code) == (PARAM, "invalid_image_url")
    return str(caught.value.message)


async def test_a_picture_of_an_allowed_host_is_fetched_from_the_address_that_was_checked(
    port: int,
) -> None:
    url = f"http://{HOST.upper()}:{port}/a.png?size=1"
    assert await local().fetch(picture(url)) == b"picture"
    assert Pages.hosts[-1].lower() == f"{HOST}:{port}"


async def test_a_host_must_be_allowed_by_name(port: int) -> None:
    assert "--allowed-media-domains" in await refusal(local(), f"http://127.0.0.1:{port}/a.png")
    assert "none is allowed" in await refusal(MediaFetcher([]), f"http://{HOST}/a.png")


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://pictures.example/a", "http://", "", "a.png", "http://[::1"]
)
async def test_other_urls_are_refused(url: str) -> None:
    await refusal(local(), url)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0"),
        *("fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::"),
    ],
)
def test_an_address_of_this_host_or_its_networks_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111"])
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(address)


async def test_a_host_with_one_private_address_is_refused() -> None:
    async def both(host: str, port: int) -> Sequence[str]:
        return ["8.8.8.8", "127.0.0.1"]

    assert "not public" in await refusal(MediaFetcher([HOST], both), f"http://{HOST}/a.png")


async def test_a_redirect_is_checked_like_a_first_url(port: int) -> None:
    again = f"http://{HOST}:{port}"
    assert await local().fetch(picture(f"{again}/to/{again}/a.png")) == b"picture"
    inside = f"{again}/to/http://127.0.0.1:{port}/a.png"
    assert "not allowed" in await refusal(local(), inside)


async def test_a_second_answer_for_the_name_is_checked_too(port: int) -> None:
    answers = iter([["127.0.0.1"], ["169.254.169.254"]])

    async def rebinding(host: str, port: int) -> Sequence[str]:
        return next(answers)

    fetcher = MediaFetcher([HOST], rebinding, lambda address: address == "127.0.0.1")
    again = f"http://{HOST}:{port}"
    assert "not public" in await refusal(fetcher, f"{again}/to/{again}/a.png")


async def test_redirects_end(port: int) -> None:
    url = f"http://{HOST}:{port}/a.png"
    for _ in range(5):
        url = f"http://{HOST}:{port}/to/{url}"
    assert "redirected more than" in await refusal(local(), url)


async def test_a_large_body_and_an_error_are_refused(port: int) -> None:
    assert f"more than {MAX_BYTES} bytes" in await refusal(local(), f"http://{HOST}:{port}/large")
    assert "answers 404" in await refusal(local(), f"http://{HOST}:{port}/missing")


async def test_a_slow_server_is_given_up(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 0.3)
    begun = asyncio.get_running_loop().time()
    assert "more than 0.3 seconds" in await refusal(local(), f"http://{HOST}:{port}/slow")
    assert asyncio.get_running_loop().time() - begun < 1


async def test_a_name_that_does_not_resolve_is_refused() -> None:
    async def nowhere(host: str, port: int) -> Sequence[str]:
        raise OSError("Name or service not known")

    assert "not known" in await refusal(MediaFetcher([HOST], nowhere), f"https://{HOST}/a.png")
