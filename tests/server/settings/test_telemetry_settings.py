"""The settings of traces and of the log of slow requests."""

from typing import Any

import pytest
from pydantic import ValidationError

from server.settings import Settings, telemetry_settings
from server.settings.sources import load_settings
from server.settings.types import SettingsError

URL = "http://127.0.0.1:4318/v1/traces"


def refusal(**given: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Settings(**given)
    return str(caught.value)


def test_traces_and_the_log_of_slow_requests_are_off_by_default() -> None:
    settings = Settings()
    assert (settings.otlp_traces_endpoint, settings.slow_request_s) == (None, 0.0)


@pytest.mark.parametrize("url", [URL, "https://collector.example/otlp/", "http://[::1]:4318/x"])
def test_an_endpoint_is_a_whole_url(url: str) -> None:
    assert Settings(otlp_traces_endpoint=url).otlp_traces_endpoint == url


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:4318", "http://127.0.0.1:4318", "grpc://127.0.0.1:4317/", "http:///v1/traces", "x"],
)
def test_an_endpoint_without_its_parts_is_refused(url: str) -> None:
    assert f"such as {URL}" in refusal(otlp_traces_endpoint=url)


@pytest.mark.parametrize("url", ["http://h:port/v1/traces", "http://h:99999/p", "http://[::1/p"])
def test_an_endpoint_that_is_not_a_url_is_refused(url: str) -> None:
    assert "otlp_traces_endpoint" in refusal(otlp_traces_endpoint=url)


@pytest.mark.parametrize(
    "url",
    ["http://user:secret@h/v1/traces", "http://h/v1/traces?token=secret", "http://h/p#secret"],
)
def test_credentials_do_not_belong_in_the_endpoint(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(["--otlp-traces-endpoint", url], {})
    (line,) = caught.value.lines
    assert line.startswith("--otlp-traces-endpoint: ")
    assert "OTEL_EXPORTER_OTLP_HEADERS" in line
    assert "secret" not in line


@pytest.mark.parametrize("found", [None, ModuleNotFoundError("no opentelemetry.exporter")])
def test_the_libraries_must_be_installed(
    monkeypatch: pytest.MonkeyPatch, found: Exception | None
) -> None:
    def find_spec(name: str) -> None:
        if found is not None:
            raise found

    monkeypatch.setattr(telemetry_settings, "find_spec", find_spec)
    assert "specgate[otel]" in refusal(otlp_traces_endpoint=URL)
    assert Settings(otlp_traces_endpoint=None).otlp_traces_endpoint is None


@pytest.mark.parametrize("seconds", [-1, "inf", "nan", "soon"])
def test_a_threshold_is_a_number_of_seconds(seconds: Any) -> None:
    assert "slow_request_s" in refusal(slow_request_s=seconds)
