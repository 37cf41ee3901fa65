"""The settings of logs and traces."""

from importlib.util import find_spec
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, Field

from server.settings.types import Seconds


def _traces_endpoint(url: str | None) -> str | None:
    """Raises `ValueError` if traces cannot be sent to the URL."""
    if url is None:
        return None
    parts = urlsplit(url)
    if parts.username is not None or parts.query or parts.fragment:
        # The log shows the URL when it cannot be reached.
        raise ValueError(
            "must have no user, query or fragment: OTEL_EXPORTER_OTLP_HEADERS takes credentials"
        )
    is_http = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    if not is_http or not parts.path:
        raise ValueError("must be a URL with its path, such as http://127.0.0.1:4318/v1/traces")
    if not _has_opentelemetry():
        raise ValueError("needs the extra `otel`: pip install 'specgate[otel]'")
    return url


def _has_opentelemetry() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:  # a package above it is missing
        return False


class TelemetrySettings(BaseModel):
    """What the server logs, and where it sends traces."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severe messages to log"
    )
    log_json: bool = Field(False, description="log one JSON object per line")
    access_log: bool = Field(True, description="log every HTTP request")
    slow_request_s: Seconds = Field(
        0.0,
        description="seconds from which on a generating request is logged as slow; 0 logs none",
    )
    otlp_traces_endpoint: Annotated[str | None, AfterValidator(_traces_endpoint)] = Field(
        None,
        description="URL that gets OpenTelemetry traces by OTLP over HTTP (protobuf), such as "
        "http://127.0.0.1:4318/v1/traces (default: no traces)",
    )
