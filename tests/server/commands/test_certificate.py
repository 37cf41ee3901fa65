"""A certificate that cannot be used is named with its file; so is one that a command mistrusts."""

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from server.cli import main
from server.commands.certificate import load_certificate
from server.settings.sources import load_settings
from server.settings.types import SettingsError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates and keys, made by openssl."""
    made = tmp_path_factory.mktemp("tls")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=made, check=True, capture_output=True)

    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name, alternatives in (("server", names), ("other", "subjectAltName=DNS:other")):
        files = ("-keyout", f"{name}.key", "-out", f"{name}.pem")
        openssl("req", "-x509", *curve, *files, "-subj", "/CN=x", "-addext", alternatives)
    openssl("pkey", "-in", "server.key", "-aes128", "-passout", "pass:x", "-out", "locked.key")
    openssl("genrsa", "-out", "rsa.key", "2048")
    (made / "both.pem").write_text(
        (made / "server.pem").read_text() + (made / "server.key").read_text()
    )
    return made


def error_of(folder: Path, certfile: str, keyfile: str | None) -> str:
    words = ["--engine", "fake", "--ssl-certfile", str(folder / certfile)]
    if keyfile is not None:
        words += ["--ssl-keyfile", str(folder / keyfile)]
    with pytest.raises(SettingsError) as caught:
        load_certificate(load_settings(words, {}))
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("certfile", "keyfile", "message"),
    [
        ("none", None, "--ssl-certfile: cannot read none: No such file or directory"),
        ("server.key", None, "--ssl-certfile: server.key has no certificate in PEM"),
        ("server.pem", None, "--ssl-certfile: server.pem has no private key in PEM; name its"),
        ("server.pem", "none", "--ssl-keyfile: cannot read none: No such file or directory"),
        ("server.pem", "other.pem", "--ssl-keyfile: other.pem has no private key in PEM"),
        ("server.pem", "locked.key", "--ssl-keyfile: the key in locked.key has a password"),
        ("server.pem", "other.key", "--ssl-keyfile: the key in other.key is not that of the"),
        ("server.pem", "rsa.key", "--ssl-keyfile: the key in rsa.key is not that of the"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_setting(
    folder: Path, certfile: str, keyfile: str | None, message: str
) -> None:
    assert error_of(folder, certfile, keyfile).startswith(message)


def test_a_broken_certificate_is_named(folder: Path) -> None:
    broken = (folder / "both.pem").read_text().replace("MII", "AAA", 1)
    (folder / "broken.pem").write_text(broken)
    assert error_of(folder, "broken.pem", None).startswith("--ssl-certfile: the certificate in ")


def test_a_certificate_and_its_key_are_accepted_in_one_file_or_in_two(folder: Path) -> None:
    for words in (["both.pem"], ["server.pem", "--ssl-keyfile", str(folder / "server.key")]):
        argv = ["--engine", "fake", "--ssl-certfile", str(folder / words[0]), *words[1:]]
        assert load_certificate(load_settings(argv, {})) is not None
    assert load_certificate(load_settings(["--engine", "fake"], {})) is None


def test_a_variable_is_named(folder: Path) -> None:
    variables = {"SPECGATE_ENGINE": "fake", "SPECGATE_SSL_CERTFILE": "/none"}
    with pytest.raises(SettingsError, match=r"^SPECGATE_SSL_CERTFILE: cannot read /none: "):
        load_certificate(load_settings([], variables))


def test_a_key_needs_a_certificate() -> None:
    with pytest.raises(SettingsError, match=r"^--ssl-keyfile: needs --ssl-certfile"):
        load_settings(["--engine", "fake", "--ssl-keyfile", "x"], {})


@contextmanager
def listening(context: ssl.SSLContext | None) -> Iterator[int]:
    """A port that shakes hands, and answers nothing."""

    def serve() -> None:
        while True:
            try:
                client = listener.accept()[0]
            except OSError:
                return
            try:
                if context is not None:
                    client = context.wrap_socket(client, server_side=True)
                client.recv(1)
                client.sendall(b"no HTTP\r\n\r\n")
            except OSError:
                pass  # the client mistrusts the certificate
            finally:
                client.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("certificate", "scheme", "trusted", "message"),
    [
        ("server", "https", None, "its certificate is not trusted: self-signed certificate; set"),
        ("server", "https", "other.pem", "its certificate is not trusted: self-signed"),
        ("other", "https", "other.pem", "its certificate is for another address: IP address mis"),
        (None, "https", None, "it does not speak HTTPS; try http://"),
    ],
)
def test_a_command_says_what_is_wrong_with_a_certificate(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    certificate: str | None,
    scheme: str,
    trusted: str | None,
    message: str,
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if trusted is not None:
        monkeypatch.setenv("SSL_CERT_FILE", str(folder / trusted))
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / f"{certificate}.pem", folder / f"{certificate}.key")
    with listening(context) as port:
        url = f"{scheme}://127.0.0.1:{port}"
        assert main(["status", "--url", url]) == 1
    assert capsys.readouterr().err.startswith(f"specgate: error: cannot reach {url}: {message}")


@pytest.mark.parametrize(
    ("file", "reason"),
    [("none", "No such file or directory"), ("server.key", "it has no certificate in PEM")],
)
def test_a_wrong_file_of_trusted_certificates_is_named(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: str,
    reason: str,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / file))
    assert main(["status", "--url", "https://127.0.0.1:1"]) == 1
    said = capsys.readouterr().err
    assert said == f"specgate: error: SSL_CERT_FILE: {folder / file} cannot be used: {reason}\n"
