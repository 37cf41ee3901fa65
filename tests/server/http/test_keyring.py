"""Keys are replaced while the server runs, all at once or not at all."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from server.commands.serve import check_exposure
from server.http.keyring import Keyring
from server.settings import Settings
from server.settings.access_settings import AccessSettings
from server.settings.keys import Role
from server.settings.types import SettingError
from server.telemetry.file_metrics import FileMetrics
from server.telemetry.metric_maker import MetricMaker

BEFORE = "team api old\nops admin root\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (path := tmp_path / "keys").write_text(BEFORE)
    path.chmod(0o600)
    return path


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def metrics(registry: CollectorRegistry | None = None) -> FileMetrics:
    return FileMetrics(MetricMaker(registry or CollectorRegistry()))


def keyring(file: Path, registry: CollectorRegistry | None = None, **settings: Any) -> Keyring:
    return Keyring(AccessSettings(key_file=str(file), **settings), metrics(registry))


def reloads(registry: CollectorRegistry) -> tuple[float | None, float | None]:
    """How often new keys came into force, and how often a file was refused."""
    name = "specgate_key_reloads_total"
    reloaded, refused = (
        registry.get_sample_value(name, {"outcome": outcome}) for outcome in ("reloaded", "refused")
    )
    return reloaded, refused


def name_of(keys: Keyring, token: str) -> str | None:
    found = keys.keys.find(token.encode())
    return None if found is None else found.name


def test_new_keys_are_in_force_after_a_reload(file: Path, registry: CollectorRegistry) -> None:
    keys = keyring(file, registry, api_key="flag")
    assert reloads(registry) == (0, 0)
    file.write_text("team api new\nother api another\nops admin root\n")
    assert name_of(keys, "new") is None
    with capture_logs() as logs:
        assert keys.reload()
    assert [(log["event"], log["keys"]) for log in logs] == [("keys_reloaded", 4)]
    assert (name_of(keys, "new"), name_of(keys, "old")) == ("team", None)
    assert name_of(keys, "flag") is not None
    assert keys.api_key_names() >= {"team", "other"}
    assert keys.is_shared()
    file.write_text("team api new\nteam api newer\nops admin root\n")
    again = keyring(file)
    assert again.keys.has(Role.API)
    assert not again.is_shared()
    assert reloads(registry) == (1, 0)


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602])
def test_a_key_file_that_everybody_can_use_is_warned_of(file: Path, mode: int) -> None:
    file.chmod(mode)
    with capture_logs() as logs:
        keys = keyring(file)
        keys.reload()
    warnings = [log for log in logs if log["event"] == "key_file_exposed"]
    assert [(log["file"], log["mode"]) for log in warnings] == [(str(file), f"{mode:04o}")] * 2
    assert warnings[0]["log_level"] == "warning"
    assert name_of(keys, "old") == "team"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400])
def test_a_key_file_of_its_owner_or_group_is_not_warned_of(file: Path, mode: int) -> None:
    file.chmod(mode)
    with capture_logs() as logs:
        keyring(file)
    assert logs == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("team api new\nops root secret\n", "line 2: the role must be one of"),
        ("", "has no key"),
        ("ops admin root\n", "has no api key any more"),
        ("team api new\n", "has no admin key any more"),
        ("team api new\nops admin flag\n", "line 2: this key is the api key"),
        (None, "cannot read"),
    ],
)
def test_a_file_that_cannot_be_used_changes_nothing(
    text: str | None, reason: str, file: Path, registry: CollectorRegistry
) -> None:
    # An API key in the settings would be one that is left.
    given = {"named_api_key": "flag=flag"} if text and "flag" in text else {}
    keys = keyring(file, registry, **given)
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    with capture_logs() as logs:
        assert not keys.reload()
    (log,) = logs
    assert (log["event"], log["log_level"]) == ("keys_not_reloaded", "error")
    assert reason in log["reason"]
    assert "secret" not in log["reason"]
    assert reloads(registry) == (0, 1)
    assert (name_of(keys, "old"), name_of(keys, "root")) == ("team", "ops")


def test_without_a_file_there_is_nothing_to_read_again(registry: CollectorRegistry) -> None:
    keys = Keyring(AccessSettings(api_key="flag"), metrics(registry))
    with capture_logs() as logs:
        assert not keys.reload()
    assert [(log["event"], log["log_level"]) for log in logs] == [("nothing_to_reload", "info")]
    assert name_of(keys, "flag") is not None
    assert reloads(registry) == (0, 0)


def test_a_file_that_is_replaced_during_a_start_is_in_force_after_a_reload(file: Path) -> None:
    settings = Settings(engine="fake", key_file=str(file))
    file.write_text("scraper metrics secret\n")
    check_exposure(settings.model_copy(update={"host": "0.0.0.0"}))
    keys = Keyring(settings, metrics())
    assert (name_of(keys, "old"), name_of(keys, "secret")) == ("team", None)
    assert not keys.reload()
    file.write_text("team api new\nops admin root\n")
    assert keys.reload()
    assert (name_of(keys, "old"), name_of(keys, "new")) == (None, "team")


def test_a_server_does_not_start_with_a_wrong_file(file: Path) -> None:
    file.write_text("team\n")
    with pytest.raises(SettingError, match="line 1"):
        keyring(file)
