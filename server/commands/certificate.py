"""The server's certificate and key, loaded and checked before anything else is."""

import re
import ssl
from pathlib import Path

from server.settings import Settings, flag
from server.settings.types import SettingsError

_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_KEY = re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----")
_PASSWORD = re.compile(rb"-----BEGIN ENCRYPTED PRIVATE KEY-----|^Proc-Type: *4,ENCRYPTED", re.M)
# The last one: OpenSSL keeps a certificate for each type of key, and has none for this key's.
_OF_ANOTHER = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")


def load_certificate(settings: Settings) -> ssl.SSLContext | None:
    """How the server speaks TLS; `None` if it does not.

    Raises `SettingsError`, which names the setting and its file, if they cannot be used.
    """
    certfile = settings.ssl_certfile
    if certfile is None:
        return None
    setting = settings.written_name("ssl_certfile")
    content = _read(setting, certfile)
    if _CERTIFICATE not in content:
        raise SettingsError(f"{setting}: {certfile} has no certificate in PEM")
    keyfile = settings.ssl_keyfile
    if keyfile is None:
        keyfile = certfile
        problem = f"has no private key in PEM; name its file with {flag('ssl_keyfile')}"
    else:
        setting = settings.written_name("ssl_keyfile")
        content = _read(setting, keyfile)
        problem = "has no private key in PEM"
    if not _KEY.search(content):
        raise SettingsError(f"{setting}: {keyfile} {problem}")
    if _PASSWORD.search(content):
        raise SettingsError(
            f"{setting}: the key in {keyfile} has a password, and the server takes none: write "
            "one without it with `openssl pkey -in KEY -out NEW`"
        )
    return _context(settings, certfile, keyfile, setting)


def _read(setting: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"{setting}: cannot read {path}: {reason}") from None


def _context(settings: Settings, certfile: str, keyfile: str, key_setting: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # A password stops OpenSSL from asking for one.
        context.load_cert_chain(certfile, keyfile, password="")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        if reason in _OF_ANOTHER:
            raise SettingsError(
                f"{key_setting}: the key in {keyfile} is not that of the certificate in {certfile}"
            ) from None
        words = reason.lower().replace("_", " ")
        raise SettingsError(
            f"{settings.written_name('ssl_certfile')}: the certificate in {certfile} and the key "
            f"in {keyfile} cannot be used: {words}"
        ) from None
    return context
