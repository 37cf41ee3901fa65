"""The settings of connections: addresses, origins, sizes and times."""

from typing import Annotated

from pydantic import BaseModel, ByteSize, Field

from server.settings.origins import Origins
from server.settings.types import Count, PositiveSeconds, Seconds

Size = Annotated[ByteSize, Field(ge=1)]


class HttpSettings(BaseModel):
    """Where the server listens, and what a connection may do."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="TCP port to listen on; 0 takes a free one")
    ssl_certfile: str | None = Field(
        None, description="file with the certificate chain, in PEM; the server then speaks HTTPS"
    )
    ssl_keyfile: str | None = Field(
        None,
        description="file with the certificate's private key, if --ssl-certfile has none",
    )
    allowed_origins: Origins = Field(
        (),
        description="origin of the web pages that may call this API from a browser, such as "
        "http://127.0.0.1:3000, or * for every page (repeatable; default: none)",
    )
    max_connections: Count | None = Field(
        None,
        description="most open connections; more are refused (default: what the limit of open "
        "files leaves room for, at most 10000)",
    )
    max_url_bytes: Size = Field(ByteSize(8 * 2**10), description="longest URL in bytes, or as 8KiB")
    max_header_bytes: Size = Field(
        ByteSize(64 * 2**10), description="most bytes of a request's headers together, or as 64KiB"
    )
    max_headers: Count = Field(100, description="most headers of a request")
    max_body_bytes: Size = Field(
        ByteSize(32 * 2**20), description="largest request body in bytes, or as 32MiB"
    )
    max_body_values: Count = Field(
        1_000_000,
        description="most values in a request body, counted by its commas and colons",
    )
    max_unfinished_body_bytes: Size = Field(
        ByteSize(256 * 2**20),
        description="most bytes of bodies together that have not arrived in full, or as 256MiB",
    )
    max_unsent_bytes: Size = Field(
        ByteSize(16 * 2**20),
        description="most bytes of a stream that its client leaves unread; more end it; or as "
        "16MiB",
    )
    max_all_unsent_bytes: Size = Field(
        ByteSize(512 * 2**20),
        description="most bytes of all answers together that their clients leave unread; more end "
        "the connection that is most behind; or as 512MiB",
    )
    idle_timeout_s: Count = Field(
        65, description="seconds for which a connection may wait without a request"
    )
    header_timeout_s: PositiveSeconds = Field(
        30.0,
        description="seconds from the first byte of a request to the end of its headers, and for "
        "a TLS handshake",
    )
    body_timeout_s: PositiveSeconds = Field(
        30.0, description="seconds in which the next 16 KiB of a body, or its end, must arrive"
    )
    write_timeout_s: PositiveSeconds = Field(
        30.0, description="seconds after which a client that reads nothing is disconnected"
    )
    keepalive_s: Seconds = Field(
        15.0, description="seconds of silence before a stream sends a comment; 0 is never"
    )
    shutdown_delay_s: Seconds = Field(
        0.0, description="seconds from SIGTERM, or /ready at 503, until the port is closed"
    )
    shutdown_timeout_s: Seconds = Field(
        20.0, ge=1, description="seconds from SIGTERM until requests that still run fail"
    )
