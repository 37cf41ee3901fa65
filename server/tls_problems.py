"""What is wrong when a client of ours cannot speak TLS with a server, and what helps."""

import os
import ssl
from collections.abc import Iterator

CERT_FILE = "SSL_CERT_FILE"
"""The variable with a file of certificates that clients trust instead of the system's."""

_OTHER_NAME = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH


def tls_problem(error: BaseException) -> str | None:
    """The reason of a failed connection, as a clause; `None` if TLS is not the reason."""
    for cause in _chain(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = cause.verify_message.removesuffix(".")
            if cause.verify_code in _OTHER_NAME:
                return f"its certificate is for another address: {reason}"
            return (
                f"its certificate is not trusted: {reason}; set {CERT_FILE} to the file of the "
                "certificate, or of the authority that signed it"
            )
        if isinstance(cause, ssl.SSLError):
            if cause.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
                return "it does not speak HTTPS; try http://"
            return f"TLS failed: {(cause.reason or str(cause)).lower().replace('_', ' ')}"
    return None


def cert_file_problem(error: OSError) -> str:
    """Why the certificates of `SSL_CERT_FILE` cannot be loaded, as a line."""
    path = os.environ.get(CERT_FILE, "")
    reason = "it has no certificate in PEM" if isinstance(error, ssl.SSLError) else error.strerror
    return f"{CERT_FILE}: {path} cannot be used: {reason}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
