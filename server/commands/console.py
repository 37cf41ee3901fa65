"""`specgate console`: the console for a running server, on this machine."""

import argparse
import socket
from collections.abc import Sequence
from contextlib import suppress

import uvicorn
from fastapi import FastAPI

from server.commands import BAD_SETTING, FAILED, print_error
from server.commands.admin_client import Parser
from server.commands.serve import bind
from server.console import pages
from server.fleet.addresses import check_url
from server.http.direct import is_loopback
from server.settings.types import SettingsError
from server.tls_problems import cert_file_problem

DEFAULT_PORT, MAX_PORT = 8001, 65535
CLOSE_S = 5
"""Seconds that streams get when the console stops."""


def console(argv: Sequence[str]) -> int:
    """Serves the console until Ctrl-C. Returns the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    urls = parser.fleet_urls(options)
    if not pages.installed():
        print_error("the console needs its extra: pip install 'specgate[console]'")
        return FAILED
    url = urls[0].rstrip("/")
    try:
        check_url(url)
        listener = bind(options.host, options.port)
    except ValueError as error:
        print_error(f"--url: {urls[0]!r} cannot be used: {error}")
        return BAD_SETTING
    except SettingsError as error:
        print_error(error.lines[0])
        return BAD_SETTING
    # Imports the routes, which takes a second: a wrong argument is reported before.
    from server.console.proxy import create_console

    try:
        app = create_console(
            url,
            on_loopback=is_loopback(listener.getsockname()[0]),
            fleet=urls if options.all else (),
        )
    except OSError as error:
        print_error(cert_file_problem(error))
        return FAILED
    with listener:
        host = f"[{options.host}]" if ":" in options.host else options.host
        place = f"http://{host}:{listener.getsockname()[1]}{pages.PATH}"
        if options.all:
            place += "#fleet"
        print(f"The console of {' '.join(urls)} is at {place}", flush=True)
        _serve(app, listener)
    return 0


def _serve(app: FastAPI, listener: socket.socket) -> None:
    config = uvicorn.Config(
        app, log_config=None, access_log=False, timeout_graceful_shutdown=CLOSE_S
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])


def _parser() -> Parser:
    parser = Parser(
        "specgate console",
        "Serves a page that shows and steers a running server. The page asks for the key.",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=_port, default=DEFAULT_PORT, help="port to listen on (default: 8001)"
    )
    parser.add_url(several=True)
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"must be a port from 0 to {MAX_PORT}, got {text!r}")
    return int(text)
