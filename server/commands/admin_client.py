"""A client of the admin routes, and the arguments of the commands that use it."""

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn
from urllib.parse import urlsplit

import httpx

from server.commands import BAD_SETTING, print_error
from server.fleet.addresses import check_url
from server.http.direct import is_loopback
from server.text import did_you_mean
from server.tls_problems import cert_file_problem, tls_problem

URL_VARIABLE, KEY_VARIABLE = "SPECGATE_URL", "SPECGATE_ADMIN_KEY"
DEFAULT_URL = "http://127.0.0.1:8000"
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0


class AdminClientError(Exception):
    """The server cannot be reached, or refused the request; the message is one line."""


class Parser(argparse.ArgumentParser):
    """A command's arguments; an invalid one is reported on one line."""

    def __init__(
        self, prog: str, description: str, usage: str | None = None, epilog: str | None = None
    ) -> None:
        super().__init__(
            prog, usage=usage, description=description, epilog=epilog, allow_abbrev=False
        )

    def error(self, message: str) -> NoReturn:
        """Ends the process with `BAD_SETTING`."""
        print_error(message.removeprefix("argument "))
        sys.exit(BAD_SETTING)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """The options; an unknown one is reported with the known one most like it."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            word = unknown[0].partition("=")[0]
            hint = did_you_mean(word, self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return options

    def add_url(self, *, several: bool = False) -> None:
        """Adds `--url`; with `several` also `--all`, and `fleet_urls` reads both."""
        text = f"address of the server (variable {URL_VARIABLE}; default: {DEFAULT_URL})"
        default = os.environ.get(URL_VARIABLE) or DEFAULT_URL
        if not several:
            self.add_argument("--url", default=default, help=text)
            return
        self.add_argument(
            "--url",
            action="append",
            help=f"{text}; with --all repeatable, and a name stands for all its addresses",
        )
        self.add_argument(
            "--all", action="store_true", help="the replicas of a fleet, at every address of --url"
        )

    def fleet_urls(self, options: argparse.Namespace) -> list[str]:
        """The addresses of `--url`; several only with `--all`. Ends the process otherwise."""
        addresses = options.url or (os.environ.get(URL_VARIABLE) or DEFAULT_URL).split(",")
        urls = [url.strip() for url in addresses]
        if len(urls) > 1 and not options.all:
            self.error("--url: several addresses need --all")
        for url in urls if options.all else []:
            try:
                check_url(url)
            except ValueError as error:
                self.error(
                    f"{_source(URL_VARIABLE, url, '--url')}: {url!r} cannot be used: {error}"
                )
        return urls

    def add_connection(self, *, several: bool = False) -> None:
        """Adds `--url` and `--admin-key`."""
        self.add_url(several=several)
        self.add_argument(
            "--admin-key",
            default=os.environ.get(KEY_VARIABLE),
            metavar="KEY",
            help=f"the server's admin key, if it has one; best as the variable {KEY_VARIABLE}",
        )


class AdminClient:
    """A client of a running server. A context manager.

    Args:
        admin_key: one key, or several separated by commas as in the server's own variable: the
            first is used.
        transport: used instead of the network.
        arguments: the API's field -> the command's argument that it was given as.
    """

    def __init__(
        self,
        url: str,
        admin_key: str | None,
        transport: httpx.BaseTransport | None = None,
        arguments: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._url = url.rstrip("/")
        self._arguments = arguments
        key = (admin_key or "").split(",")[0].strip()
        if not key.isprintable():
            name = _source(KEY_VARIABLE, admin_key, "--admin-key")
            raise AdminClientError(f"{name}: the key has a control character")
        try:
            address = urlsplit(self._url)
            if address.scheme not in ("http", "https") or not address.hostname:
                raise ValueError("it must begin with http:// or https:// and name a host")
            host = address.hostname
            self._client = httpx.Client(
                base_url=self._url,
                headers={b"Authorization": f"Bearer {key}".encode()} if key else {},
                timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
                transport=transport,
                # Admin routes without a key answer direct requests only: no proxy to loopback.
                trust_env=not is_loopback(host),
                # SSL_CERT_FILE counts for loopback too.
                verify=httpx.create_ssl_context(),
            )
        except (ValueError, httpx.InvalidURL) as error:
            name = _source(URL_VARIABLE, url, "--url")
            raise AdminClientError(f"{name}: {url!r} cannot be used: {error}") from None
        except OSError as error:
            raise AdminClientError(cert_file_problem(error)) from None

    def __enter__(self) -> "AdminClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at `path`. Raises `AdminClientError`."""
        return self._request("GET", path)

    def post(self, path: str, body: Mapping[str, Any], wait_s: float = 0.0) -> dict[str, Any]:
        """The JSON response to `body`. Raises `AdminClientError`.

        Args:
            wait_s: seconds that the server may wait before it processes the request.
        """
        timeout = httpx.Timeout(wait_s + READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        return self._request("POST", path, json=dict(body), timeout=timeout)

    def _request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = self._client.request(method, path, **options)
        except httpx.TimeoutException:
            raise AdminClientError(f"{self._url} did not answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            reason = tls_problem(error) or str(error)
            if isinstance(error, httpx.RemoteProtocolError) and self._url.startswith("http:"):
                reason = f"{reason.removesuffix('.')}; if it speaks HTTPS, use https://"
            raise AdminClientError(f"cannot reach {self._url}: {reason}") from None
        try:
            body = response.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise AdminClientError(
                f"{self._url} answered {response.status_code}, but not as Specgate"
            )
        if response.status_code != 200:
            raise AdminClientError(self._refusal(response.status_code, body.get("error")))
        return body

    def _refusal(self, status: int, error: object) -> str:
        if not isinstance(error, dict):
            return f"the server answered {status}"
        message = " ".join(str(error.get("message")).split())
        param = str(error.get("param"))
        if param in self._arguments:
            message = re.sub(rf"(?<!\w){re.escape(param)}(?!\w)", self._arguments[param], message)
        return f"{message} ({status} {error.get('code') or error.get('type')})"


def _source(variable: str, value: str | None, flag: str) -> str:
    """Where a value comes from: a variable, or else a flag."""
    return variable if value and os.environ.get(variable) == value else flag


def method_text(method: Mapping[str, Any]) -> str:
    """A spec method of the API, as commands print it."""
    k = method["num_speculative_tokens"]
    return f"{method['spec_method']} (k {k})" if k else str(method["spec_method"])


def policy_lines(policy: Mapping[str, Any]) -> list[str]:
    """What a policy of the API does, as commands print it."""
    rows: Mapping[str, int] = policy["decisions"]
    total = sum(rows.values())
    shares = ", ".join(
        f"{name} {100 * count / total:.0f}%"
        for name, count in sorted(rows.items(), key=lambda pair: -pair[1])
        if count
    )
    lines = [f"policy     {policy['name']}: {shares or 'planned nothing'} in the last minute"]
    if policy["suspended"]:
        lines.append("guard      holds it at plain decoding, because speculation lost time")
    state = ", ".join(f"{name} {json.dumps(value)}" for name, value in policy["state"].items())
    if state:
        lines.append(f"state      {printable(state)}")
    return lines


def printable(text: str) -> str:
    """`text` on one line, without control characters."""
    return "".join(c if c.isprintable() else " " for c in text)
