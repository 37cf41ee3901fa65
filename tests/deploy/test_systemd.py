"""The systemd unit."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from server.commands import BAD_SETTING
from server.settings import Settings
from tests.deploy.manifests import DEPLOY

UNIT = DEPLOY / "systemd" / "specgate@.service"


@pytest.fixture(scope="module")
def service() -> configparser.SectionProxy:
    """The section [Service]."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(UNIT)
    return parser["Service"]


def test_only_the_server_gets_the_signal(service: configparser.SectionProxy) -> None:
    assert service["KillMode"] == "mixed"


def test_a_stop_has_time(service: configparser.SectionProxy) -> None:
    default = Settings.model_fields["shutdown_timeout_s"].default
    assert int(service["TimeoutStopSec"]) >= default + 20


def test_an_invalid_setting_is_not_tried_again(service: configparser.SectionProxy) -> None:
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == str(BAD_SETTING)


def test_it_does_not_run_as_root(service: configparser.SectionProxy) -> None:
    assert service["DynamicUser"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["CacheDirectory"] == "specgate-%i"


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing: apt install systemd")
    unit = tmp_path / "specgate@one.service"
    unit.write_text(UNIT.read_text().replace("/usr/local/lib/specgate/bin/specgate", "/bin/sh"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "specgate@" not in done.stderr
