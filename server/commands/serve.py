"""`specgate serve`: the checks before anything loads; `server_process` does the rest."""

import errno
import os
import resource
import signal
import socket
import ssl
from collections.abc import Sequence
from contextlib import closing

import structlog

from server.commands import BAD_SETTING, print_error
from server.commands.startup_display import StartupDisplay
from server.commands.terminal import Terminal
from server.control.audit import Audit
from server.http import descriptors
from server.http.direct import is_loopback
from server.settings import Settings
from server.settings.keys import Role
from server.settings.sources import (
    SettingsError,
    forget_keys,
    load_settings,
    unknown_variables,
)
from server.telemetry.logs import configure_logs

BACKLOG = 2048
"""Connections that may wait to be accepted."""

log = structlog.get_logger(__name__)


def serve(argv: Sequence[str]) -> int:
    """Serves until a signal. Returns the process's exit status."""
    ignore_hang_ups()
    try:
        settings = load_settings(argv, os.environ)
        check_exposure(settings)
        check_certificate(settings)
        max_connections = connection_limit(settings, descriptors.raise_limit())
        audit = open_audit(settings)
        listener = bind(settings.host, settings.port)
    except SettingsError as error:
        for line in error.lines:
            print_error(line)
        return BAD_SETTING
    forget_keys(os.environ)
    with listener, closing(audit):
        configure_logs(settings.log_level, json=settings.log_json, access=settings.access_log)
        for line in unknown_variables(os.environ):
            log.warning("unknown_variable", detail=line)
        display = StartupDisplay(settings)
        display.stage("Loading libraries")
        # Imports transformers, which takes seconds: an invalid setting must be reported before.
        from server.commands.server_process import ServerProcess

        return ServerProcess(settings, listener, display, audit, max_connections).run()


def ignore_hang_ups() -> None:
    """Until the server runs, SIGHUP does nothing, unless its terminal is closed.

    By default it ends a process. This is a handler and not `SIG_IGN`, which the engine's processes
    would inherit.
    """
    terminal = Terminal()

    def hang_up(number: int, frame: object) -> None:
        if terminal.was_closed:
            raise KeyboardInterrupt

    signal.signal(signal.SIGHUP, hang_up)


def connection_limit(settings: Settings, limit: int) -> int:
    """The most open connections under a limit of descriptors. Raises `SettingsError`."""
    wanted = settings.max_connections
    if wanted is None:
        return descriptors.default_connections(limit)
    needed = descriptors.needed(wanted)
    if limit != resource.RLIM_INFINITY and needed > limit:
        message = f"{wanted} need {needed} file descriptors; this process may have {limit}"
        raise SettingsError(f"--max-connections: {message} (see ulimit -n)")
    return wanted


def check_exposure(settings: Settings) -> None:
    """Raises `SettingsError` for a server that others reach without a key."""
    if is_loopback(settings.host) or settings.insecure or settings.keys_at_start.has(Role.API):
        return
    raise SettingsError(
        f"--host: {settings.host} can be reached from other machines, so inference needs a key: "
        "set SPECGATE_API_KEY or --key-file; --insecure serves everybody who can connect"
    )


def check_certificate(settings: Settings) -> None:
    """Raises `SettingsError` for a certificate that cannot be used."""
    if settings.ssl_certfile is None:
        return
    try:
        # A password stops OpenSSL from asking for one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            settings.ssl_certfile, settings.ssl_keyfile, password=""
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise SettingsError(
            f"--ssl-certfile: {settings.ssl_certfile} and its key cannot be used: {reason}"
        ) from None


def open_audit(settings: Settings) -> Audit:
    """Opens the audit file before anything loads. Raises `SettingsError`."""
    path = settings.audit_log
    try:
        return Audit(path)
    except OSError as error:
        raise SettingsError(f"--audit-log: cannot write {path}: {error.strerror}") from None


def bind(host: str, port: int) -> socket.socket:
    """Binds the port before anything loads. Raises `SettingsError`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise SettingsError(f"--host: cannot resolve {host!r}: {error}") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        # Without it another server that is still loading could bind the same port.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            hint = "choose another one, or 0 for a free one"
            raise SettingsError(f"--port: {port} on {host}: {error.strerror}; {hint}") from None
        raise SettingsError(f"--host: cannot listen on {host}: {error.strerror}") from None
    return listener
