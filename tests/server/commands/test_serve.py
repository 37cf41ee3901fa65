"""What is checked before anything loads: the exposure, the keys, the port."""

import socket
from pathlib import Path

import pytest

from server.commands.serve import bind, check_exposure, connection_limit, open_audit, with_address
from server.settings import Settings
from server.settings.sources import load_settings
from server.settings.types import SettingsError

HOST = "127.0.0.1"


def test_a_bound_port_accepts_connections() -> None:
    with bind(HOST, 0) as listener, socket.create_connection(listener.getsockname()) as client:
        assert client.getpeername() == listener.getsockname()


def test_a_bound_port_is_not_bound_again() -> None:
    with bind(HOST, 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"^--port: {port} on 127.0.0.1: .* in use"):
            bind(HOST, port)


def test_connections_that_the_descriptors_do_not_suffice_for_end_the_start() -> None:
    """The server has files, pipes and its engine's sockets besides connections."""
    for wanted, fits in ((700, True), (992, False)):
        given = settings("--max-connections", str(wanted))
        if fits:
            assert connection_limit(given, 1024) == wanted
            continue
        with pytest.raises(SettingsError, match=r"^--max-connections: 992 need 1\d{3} file"):
            connection_limit(given, 1024)


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


def settings(*argv: str, **variables: str) -> Settings:
    """The settings of a command line and of variables."""
    return load_settings(["--engine", "fake", *argv], variables)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "specgate.example"])
def test_beyond_loopback_a_server_without_an_api_key_does_not_start(host: str) -> None:
    for given in ({}, {"SPECGATE_ADMIN_KEY": "root"}, {"SPECGATE_METRICS_KEY": "scrape"}):
        with pytest.raises(SettingsError, match=rf"^--host: {host} can be reached .* --insecure"):
            check_exposure(settings("--host", host, **given))


def test_a_key_or_a_decision_lets_it_start(tmp_path: Path) -> None:
    (file := tmp_path / "keys").write_text("team api sk-team\n")
    for given in ("--api-key=a", "--named-api-key=a=b", f"--key-file={file}", "--insecure"):
        check_exposure(settings("--host", "0.0.0.0", given))
    file.write_text("ops admin sk-ops\n")
    with pytest.raises(SettingsError, match="can be reached"):
        check_exposure(settings("--host", "0.0.0.0", "--key-file", str(file)))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.1.2.3"])
def test_on_loopback_it_starts_without_a_key(host: str) -> None:
    check_exposure(settings("--host", host))


def leads_to(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every name lead to an address."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 8000))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


@pytest.mark.parametrize("host", ["x.localhost", "localhost"])
def test_a_name_in_localhost_counts_as_what_it_leads_to(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leads_to("10.0.0.7", monkeypatch)
    exposed = with_address(settings("--host", host))
    assert exposed.host == "10.0.0.7"
    with pytest.raises(SettingsError, match=r"^--host: 10\.0\.0\.7 can be reached"):
        check_exposure(exposed)
    leads_to("127.0.0.1", monkeypatch)
    check_exposure(with_address(settings("--host", host)))


def test_a_setting_is_named_as_it_was_given(tmp_path: Path) -> None:
    (file := tmp_path / "specgate.yaml").write_text("max_connections: 99999999\nhost: 0.0.0.0\n")
    given = settings("--config", str(file), SPECGATE_AUDIT_LOG="/no/such/file")
    with pytest.raises(SettingsError, match=f"^max_connections in {file}: 99999999 need"):
        connection_limit(given, 1024)
    with pytest.raises(SettingsError, match=r"^SPECGATE_AUDIT_LOG: cannot write /no/such/file: "):
        open_audit(given)
    with pytest.raises(SettingsError, match=f"^host in {file}: 0.0.0.0 can be reached"):
        check_exposure(with_address(given))
    with bind(HOST, 0) as listener:
        port = listener.getsockname()[1]
        written = settings(SPECGATE_PORT=str(port)).written_name
        with pytest.raises(SettingsError, match=f"^SPECGATE_PORT: {port} on "):
            bind(HOST, port, written)


@pytest.mark.parametrize(
    "name", ["API_KEY", "ADMIN_KEY", "NAMED_API_KEY", "METRICS_KEY", "KEY_FILE"]
)
def test_an_empty_key_variable_ends_the_start(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"^SPECGATE_{name}: "):
        settings(**{f"SPECGATE_{name}": ""})
    (file := tmp_path / "specgate.yaml").write_text(f'{name.lower()}: ""\n')
    with pytest.raises(SettingsError, match=f"^{name.lower()} in "):
        settings("--config", str(file))
    with pytest.raises(SettingsError, match=f"^--{name.lower().replace('_', '-')}: "):
        settings(f"--{name.lower().replace('_', '-')}", "")


def test_a_wrong_key_file_is_named_with_its_line(tmp_path: Path) -> None:
    (file := tmp_path / "keys").write_text("team api\n")
    with pytest.raises(SettingsError, match=r"^--key-file: .*/keys, line 1: must have a name"):
        settings("--key-file", str(file))
    with pytest.raises(SettingsError, match=r"^SPECGATE_KEY_FILE: .*/keys, line 1: must have"):
        settings(SPECGATE_KEY_FILE=str(file))


def test_an_allowed_folder_must_exist(tmp_path: Path) -> None:
    assert settings("--allowed-local-path", str(tmp_path)).loadable_folders()[0] == str(tmp_path)
    with pytest.raises(
        SettingsError, match=r"^--allowed-local-path: the folder '/no/such' does not exist"
    ):
        settings("--allowed-local-path", "/no/such")
