"""The port is bound before anything loads."""

import socket

import pytest

from server.commands.serve import bind
from server.settings.sources import SettingsError

HOST = "127.0.0.1"


def test_a_bound_port_accepts_connections() -> None:
    with bind(HOST, 0) as listener, socket.create_connection(listener.getsockname()) as client:
        assert client.getpeername() == listener.getsockname()


def test_a_bound_port_is_not_bound_again() -> None:
    with bind(HOST, 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"^--port: {port} on 127.0.0.1: .* in use"):
            bind(HOST, port)


def test_a_port_that_was_just_closed_can_be_bound() -> None:
    with bind(HOST, 0) as listener:
        address = listener.getsockname()
        client = socket.create_connection(address)
        listener.accept()[0].close()
        client.close()
    with bind(HOST, address[1]) as again:
        assert again.getsockname() == address


def test_an_unknown_host_name_is_an_invalid_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(SettingsError, match=r"^--host: cannot resolve 'here': .*not known"):
        bind("here", 0)
