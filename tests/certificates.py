"""A certificate for servers of tests."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate of this machine, and its key, in PEM files."""

    certfile: Path
    keyfile: Path

    @classmethod
    def make(cls, folder: Path) -> "Certificate":
        """Made by openssl, which the tests need."""
        made = cls(folder / "server.pem", folder / "server.key")
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        files = ("-keyout", str(made.keyfile), "-out", str(made.certfile))
        names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
        words = ("openssl", "req", "-x509", *curve, *files, "-subj", "/CN=x", "-addext", names)
        subprocess.run(words, check=True, capture_output=True)
        return made

    def for_server(self) -> ssl.SSLContext:
        """How a server speaks TLS with it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certfile, self.keyfile)
        return context

    def for_client(self) -> ssl.SSLContext:
        """How a client that trusts it does."""
        return ssl.create_default_context(cafile=str(self.certfile))
