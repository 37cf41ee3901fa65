"""The terminal output of a start."""

import json
import shlex
from typing import Any

import pytest

from engine_adapter.seam.types import EngineInfo, ProposerInfo
from server.commands.startup_display import StartupDisplay
from server.settings import Settings

NGRAM = {"name": "ngram"}
LONG = "/a/very/long/path" * 12


def banner(capsys: pytest.CaptureFixture[str], port: int = 8000, **given: Any) -> str:
    """The banner of a server with these settings."""
    settings = Settings(**{"model": "org/m", "proposer": [NGRAM], **given})
    infos = tuple(
        ProposerInfo(p.name, p.method, LONG, p.num_speculative_tokens) for p in settings.proposer
    )
    info = EngineInfo("fake", "1", settings.model, settings.model, 2048, 8, 99, 20, 5, infos)
    StartupDisplay(settings).ready(info, port)
    return capsys.readouterr().out


def curl(text: str, path: str) -> list[str]:
    """The words of the one curl line for a path, as a shell reads them."""
    (line,) = [one for one in text.splitlines() if one.startswith("curl") and path in one]
    return shlex.split(line)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:81"),
        ("0.0.0.0", "http://127.0.0.1:81"),
        ("::", "http://[::1]:81"),
        ("fe80::1", "http://[fe80::1]:81"),
        ("host.example", "http://host.example:81"),
    ],
)
def test_the_address_can_be_pasted(capsys: pytest.CaptureFixture[str], host: str, url: str) -> None:
    text = banner(capsys, port=81, host=host)
    assert f"serves org/m on {url}\n" in text
    assert curl(text, "/v1/completions")[1] == f"{url}/v1/completions"


@pytest.mark.parametrize(("active", "other"), [({}, "ngram"), ({"primary": "ngram"}, "none")])
def test_the_switch_line_names_another_method(
    capsys: pytest.CaptureFixture[str], active: dict[str, Any], other: str
) -> None:
    words = curl(banner(capsys, **active), "/v1/switch_spec_method")
    assert json.loads(words[-1]) == {"speculative_model": other}


def test_the_active_method_has_a_star(capsys: pytest.CaptureFixture[str]) -> None:
    texts = [banner(capsys, spec_method=name) for name in ("none", "ngram", "auto")]
    starred = [
        [line.split()[1] for line in text.splitlines() if line.startswith("*")] for text in texts
    ]
    assert starred == [["none"], ["ngram"], ["auto"]]


def test_the_default_policy_is_shown_with_its_other_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (line,) = [one for one in banner(capsys, spec_method="auto").splitlines() if "*" in one]
    assert "auto" in line


def test_the_address_of_the_console_is_shown_if_there_is_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.console.pages.installed", lambda: True)
    assert "console: http://127.0.0.1:81/console\n" in banner(capsys, port=81)
    assert "/console" not in banner(capsys, console=False)
    monkeypatch.setattr("server.console.pages.installed", lambda: False)
    assert "/console" not in banner(capsys)


def test_the_lines_use_variables_for_keys(capsys: pytest.CaptureFixture[str]) -> None:
    text = banner(capsys, api_key=["sk-one"], admin_key=["sk-two"])
    assert "Authorization: Bearer $SPECGATE_API_KEY" in curl(text, "/v1/completions")
    assert "Authorization: Bearer $SPECGATE_ADMIN_KEY" in curl(text, "/v1/switch_spec_method")
    assert "sk-" not in text


def test_a_server_that_cannot_be_switched_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    text = banner(capsys, host="0.0.0.0")
    assert "no admin key is set" in text
    assert "curl http://127.0.0.1:8000/v1/switch" not in text


def test_a_quote_in_a_name_is_escaped_for_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    words = curl(banner(capsys, served_model_name=["it's"]), "/v1/completions")
    assert json.loads(words[-1])["model"] == "it's"


def test_lines_are_not_wrapped_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = banner(capsys)
    assert LONG in text
    assert curl(text, "/v1/completions")
