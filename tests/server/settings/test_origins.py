"""Allowed origins are written as browsers send them, or refused with the setting's name."""

from typing import Any

import pytest

from server.settings import Settings
from server.settings.sources import load_settings
from server.settings.types import SettingsError


def origins(*argv: str, **environ: str) -> tuple[str, ...]:
    flags = [word for origin in argv for word in ("--allowed-origins", origin)]
    return load_settings(["--engine", "fake", *flags], environ).allowed_origins


def test_no_origin_is_allowed_by_default() -> None:
    assert origins() == ()


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["*"], ["*"]),
        (["http://a", "https://b:8443"], ["http://a", "https://b:8443"]),
        (["http://a, http://b"], ["http://a", "http://b"]),
        (['["http://a", "http://b"]'], ["http://a", "http://b"]),
        (["HTTPS://App.Example:443"], ["https://app.example"]),
        (["http://127.0.0.1:80", "http://[::1]:3000"], ["http://127.0.0.1", "http://[::1]:3000"]),
        (["https://a:80", "http://a:443"], ["https://a:80", "http://a:443"]),
        (["vscode-webview://0f3a", "http://a", "http://a"], ["vscode-webview://0f3a", "http://a"]),
    ],
)
def test_an_origin_is_read_as_a_browser_sends_it(given: list[str], read: list[str]) -> None:
    assert origins(*given) == tuple(read)


def test_a_variable_and_a_file_have_origins_too() -> None:
    assert origins(SPECGATE_ALLOWED_ORIGINS="http://a,http://b") == ("http://a", "http://b")
    made = Settings(engine="fake", allowed_origins=["http://a"])
    assert made.allowed_origins == ("http://a",)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("app.example", "has no scheme"),
        ("127.0.0.1:3000", "has no scheme"),
        ("//app.example", "has no scheme"),
        ("1http://a", "has no scheme"),
        ("http://a/", "more than an origin"),
        ("http://a/app", "more than an origin"),
        ("http://a?x=1", "more than an origin"),
        ("http://a#x", "more than an origin"),
        ("http://user:pass@a", "no user"),
        ("http://*.a", "wildcard"),
        ("*, http://a", "leave the other ones out"),
        ("null", "null"),
        ("http://", "has no host"),
        ("http://:80", "has no host"),
        ("http://a b", "has no host"),
        ("http://ä", "has no host"),
        ("http://a:70000", "not an origin"),
        ("http://a:b", "not an origin"),
        ("http://[::1", "not an origin"),
        ("[1]", "string"),
        ("[", "not valid JSON"),
        ("http://a,", "has no scheme"),
    ],
)
def test_anything_else_is_refused_with_the_settings_name(given: str, reason: str) -> None:
    with pytest.raises(SettingsError) as caught:
        origins(given)
    (line,) = caught.value.lines
    assert line.startswith("--allowed-origins: ")
    assert reason in line


@pytest.mark.parametrize("given", [5, {"a": 1}, [[]]])
def test_a_file_with_something_else_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="allowed_origins"):
        Settings(engine="fake", allowed_origins=given)
