"""The settings of connections: addresses, origins, sizes and times."""

from typing import Annotated

from pydantic import BaseModel, ByteSize, Field

from server.settings.origins import Origins


class HttpSettings(BaseModel):
    """Where the server listens, and what a connection may do."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="TCP port to listen on; 0 takes a free one")
    ssl_certfile: str | None = Field(
        None, description="file with the certificate chain, in PEM; the server then speaks HTTPS"
    )
    ssl_keyfile: str | None = Field(
        None, description="file with the certificate's private key, if it is not in ssl_certfile"
    )
    allowed_origins: Origins = Field(
        (),
        description="origin of the web pages that may call this API from a browser, such as "
        "http://127.0.0.1:3000, or * for every page (repeatable; default: none)",
    )
    max_body_bytes: Annotated[ByteSize, Field(ge=1)] = Field(
        ByteSize(32 * 2**20), description="largest request body in bytes, or as 32MiB"
    )
    keepalive_s: float = Field(
        15.0, ge=0, description="seconds of silence before a stream sends a comment; 0 is never"
    )
    shutdown_delay_s: float = Field(
        0.0,
        ge=0,
        description="seconds from SIGTERM, or /ready at 503, until the port is closed",
    )
    shutdown_timeout_s: float = Field(
        20.0, ge=1, description="seconds from SIGTERM until requests that still run fail"
    )
