"""The image's health check: status 0 if `/ready` answers 200, else 1 with the answer.

It runs in a container every few seconds, so it imports little. It asks past any proxy.
"""

import http.client
import os
import ssl
import sys

TIMEOUT_S = 4


def main() -> int:
    """Asks the server of this container once."""
    port = int(os.environ.get("SPECGATE_PORT") or 8000)
    connection = _connection(port)
    try:
        connection.request("GET", "/ready")
        response = connection.getresponse()
        print(response.status, response.read().decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException) as error:
        print(f"no answer on port {port}: {error}")
        return 1
    finally:
        connection.close()
    return 0 if response.status == http.client.OK else 1


def _connection(port: int) -> http.client.HTTPConnection:
    if not os.environ.get("SPECGATE_SSL_CERTFILE"):
        return http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    # The certificate is for the server's name, not for this address, and nothing secret is sent.
    unverified = ssl._create_unverified_context()
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=unverified)


if __name__ == "__main__":
    sys.exit(main())
