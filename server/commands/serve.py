"""`specgate serve`: the checks before anything loads; `server_process` does the rest."""

import atexit
import errno
import os
import resource
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import structlog

from engine_adapter.seam.process_end import skip_last_collection
from server.batches.folder import Folder, open_folder
from server.commands import BAD_SETTING, print_error
from server.commands.certificate import load_certificate
from server.commands.startup_display import StartupDisplay
from server.commands.terminal import Terminal
from server.control.admin.audit import Audit
from server.http import descriptors
from server.http.direct import is_loopback
from server.settings import Settings, flag
from server.settings.keys import Role
from server.settings.sources import forget_keys, load_settings, unknown_variables
from server.settings.types import SettingError, SettingsError
from server.telemetry.logs import configure_logs

BACKLOG = 2048
"""Connections that may wait to be accepted."""

log = structlog.get_logger(__name__)


def serve(argv: Sequence[str]) -> int:
    """Serves until a signal. Returns the process's exit status."""
    ignore_hang_ups()
    try:
        loaded_settings = load_settings(argv, os.environ)
        settings = with_address(loaded_settings)
        check_exposure(settings)
        tls = load_certificate(settings)
        max_connections = connection_limit(settings, descriptors.raise_limit())
        audit = open_audit(settings)
        folder = open_folder_of(settings)
        listener = bind(settings.host, settings.port, settings.written_name)
    except SettingsError as error:
        for line in error.lines:
            print_error(line)
        return BAD_SETTING
    forget_keys(os.environ)
    with listener, closing(audit):
        configure_logs(settings.log_level, json=settings.log_json, access=settings.access_log)
        for line in unknown_variables(os.environ):
            log.warning("unknown_variable", detail=line)
        display = StartupDisplay(loaded_settings)
        display.stage("Loading libraries")
        atexit.register(skip_last_collection)
        # Imports transformers, which takes seconds: an invalid setting must be reported before.
        from server.commands.server_process import ServerProcess

        parts = (settings, listener, display, audit, max_connections, tls, folder)
        return ServerProcess(*parts).run()


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
    max_connections = settings.max_connections
    if max_connections is None:
        return descriptors.default_connections(limit)
    num_descriptors = descriptors.needed(max_connections)
    if limit != resource.RLIM_INFINITY and num_descriptors > limit:
        name = settings.written_name("max_connections")
        raise SettingsError(
            f"{name}: {max_connections} need {num_descriptors} file descriptors; this process may "
            f"have {limit} (see ulimit -n)"
        )
    return max_connections


def with_address(settings: Settings) -> Settings:
    """The settings with the address that the host's name leads to. Raises `SettingsError`.

    What a name says of an address is not trusted: one in `localhost` can lead to any.
    """
    address = _look_up(settings.host, settings.port, settings.written_name)[-1]
    return settings.model_copy(update={"host": address[0]})


def check_exposure(settings: Settings) -> None:
    """Raises `SettingsError` for a server that others reach without a key."""
    if is_loopback(settings.host) or settings.insecure or settings.keys_at_start.has(Role.API):
        return
    raise SettingsError(
        f"{settings.written_name('host')}: {settings.host} can be reached from other machines, so "
        "inference needs a key: set SPECGATE_API_KEY or --key-file; --insecure serves everybody "
        "who can connect"
    )


def open_audit(settings: Settings) -> Audit:
    """Opens the audit file before anything loads. Raises `SettingsError`."""
    path = settings.audit_log
    try:
        return Audit(path, required=settings.audit_required)
    except OSError as error:
        name = settings.written_name("audit_log")
        raise SettingsError(f"{name}: cannot write {path}: {error.strerror}") from None


def open_folder_of(settings: Settings) -> Folder | None:
    """Opens the folder of files before anything loads. Raises `SettingsError`."""
    try:
        return open_folder(settings.files_dir)
    except SettingError as error:
        raise SettingsError(f"{settings.written_name(error.setting)}: {error}") from None


def bind(host: str, port: int, setting_name: Callable[[str], str] = flag) -> socket.socket:
    """Binds the port before anything loads. Raises `SettingsError`.

    Args:
        setting_name: how messages name the settings `host` and `port`.
    """
    family, kind, protocol, _, address = _look_up(host, port, setting_name)
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
            raise SettingsError(
                f"{setting_name('port')}: {port} on {host}: {error.strerror}; {hint}"
            ) from None
        raise SettingsError(
            f"{setting_name('host')}: cannot listen on {host}: {error.strerror}"
        ) from None
    return listener


def _look_up(host: str, port: int, setting_name: Callable[[str], str]) -> Any:
    """What `socket.getaddrinfo` says first of a host. Raises `SettingsError`."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"{setting_name('host')}: cannot resolve {host!r}: {reason}") from None
