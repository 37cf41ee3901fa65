"""`specgate console`: what it refuses before it listens."""

import socket

import pytest

import server.commands.console as command
from server.commands import BAD_SETTING, FAILED
from server.console import pages


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://127.0.0.1", "http://"])
def test_an_address_that_cannot_be_used_is_named(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.console(["--url", url, "--port", "0"]) == BAD_SETTING
    assert f"--url: {url!r} cannot be used" in capsys.readouterr().err


def test_a_port_in_use_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert command.console(["--port", str(port)]) == BAD_SETTING
    assert f"--port: {port} on 127.0.0.1" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["65536", "-1", "http"])
def test_a_number_that_is_not_a_port_is_refused(
    port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.console([f"--port={port}"])
    assert caught.value.code == BAD_SETTING
    assert f"--port: must be a port from 0 to 65535, got '{port}'" in capsys.readouterr().err


def test_without_the_extra_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pages, "installed", lambda: False)
    assert command.console([]) == FAILED
    assert "pip install 'specgate[console]'" in capsys.readouterr().err
