"""What the commands share that talk to a running server: its address, its key, its errors."""

import argparse
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import urlsplit

import httpx

from server.commands import BAD_SETTING, complain
from server.http.auth import is_loopback

URL_VARIABLE, KEY_VARIABLE = "SPECGATE_URL", "SPECGATE_ADMIN_KEY"
DEFAULT_URL = "http://127.0.0.1:8000"
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0


class RemoteError(Exception):
    """The server cannot be reached, or it refused; the message is one line."""


class Parser(argparse.ArgumentParser):
    """A command's arguments: what is wrong with them is one line."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Ends the process with `BAD_SETTING`."""
        complain(message.removeprefix("argument "))
        sys.exit(BAD_SETTING)

    def add_connection(self) -> None:
        """Adds `--url` and `--admin-key`."""
        self.add_argument(
            "--url",
            default=os.environ.get(URL_VARIABLE) or DEFAULT_URL,
            help=f"address of the server (variable {URL_VARIABLE}; default: {DEFAULT_URL})",
        )
        self.add_argument(
            "--admin-key",
            default=os.environ.get(KEY_VARIABLE),
            metavar="KEY",
            help=f"the server's admin key, if it has one; best as the variable {KEY_VARIABLE}",
        )


class Remote:
    """A running server, seen from a command. A context manager.

    Args:
        admin_key: one, or several as the server's own variable has them: the first is used.
        transport: in place of the network.
    """

    def __init__(
        self, url: str, admin_key: str | None, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._url = url.rstrip("/")
        key = (admin_key or "").split(",")[0].strip()
        try:
            address = urlsplit(self._url)
            if address.scheme not in ("http", "https") or not address.hostname:
                raise ValueError("it must begin with http:// or https:// and name a host")
            host = address.hostname
            self._client = httpx.Client(
                base_url=self._url,
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
                transport=transport,
                # Admin routes without a key answer direct requests only: no proxy to loopback.
                trust_env=not is_loopback(host),
            )
        except (ValueError, httpx.InvalidURL) as error:
            raise RemoteError(f"--url: {url!r} or the key cannot be used: {error}") from None

    def __enter__(self) -> "Remote":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at `path`. Raises `RemoteError`."""
        return self._ask("GET", path)

    def post(self, path: str, body: Mapping[str, Any], wait_s: float = 0.0) -> dict[str, Any]:
        """What the server answers to `body`, which may take `wait_s` seconds by itself.

        Raises `RemoteError`.
        """
        timeout = httpx.Timeout(wait_s + READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        return self._ask("POST", path, json=dict(body), timeout=timeout)

    def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = self._client.request(method, path, **options)
        except httpx.TimeoutException:
            raise RemoteError(f"{self._url} did not answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise RemoteError(f"cannot reach {self._url}: {error}") from None
        try:
            body = response.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise RemoteError(f"{self._url} answered {response.status_code}, but not as Specgate")
        if response.status_code != 200:
            raise RemoteError(_refusal(response.status_code, body.get("error")))
        return body


def shown(method: Mapping[str, Any]) -> str:
    """A method of the API's as commands write it."""
    k = method["num_speculative_tokens"]
    return f"{method['spec_method']} (k {k})" if k else str(method["spec_method"])


def _refusal(status: int, error: object) -> str:
    if not isinstance(error, dict):
        return f"the server answered {status}"
    message = " ".join(str(error.get("message")).split())
    return f"{message} ({status} {error.get('code') or error.get('type')})"
