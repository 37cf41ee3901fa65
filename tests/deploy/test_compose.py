"""The compose files are valid, and what they mount exists."""

from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from server.settings import Settings
from tests.deploy.manifests import DEPLOY, interpolated

COMPOSE = DEPLOY / "compose"
FILES = ("compose.yaml", "compose.gpu.yaml")
VARIABLES = {
    "SPECGATE_ADMIN_KEY": "admin",
    "GRAFANA_ADMIN_PASSWORD": "grafana",
    "MODELS": "/srv/models",
}
"""What .env must have."""


def text(name: str) -> str:
    """A compose file as docker reads it."""
    return interpolated((COMPOSE / name).read_text(), VARIABLES)


def services() -> dict[str, Any]:
    """The services of compose.yaml."""
    found: dict[str, Any] = yaml.safe_load(text("compose.yaml"))["services"]
    return found


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_valid(name: str) -> None:
    PyCompose.from_yaml(text(name)).validate()
    assert yaml.safe_load(text(name))["services"], "an empty file is valid too"


@pytest.mark.parametrize(
    ("old", "new"), [("read_only:", "readonly:"), ("50s", "fifty"), ("depends_on", "depends")]
)
def test_a_mistake_is_found(old: str, new: str) -> None:
    with pytest.raises(ValueError, match=r"extension key|duration"):
        PyCompose.from_yaml(text("compose.yaml").replace(old, new))


@pytest.mark.parametrize("name", ["SPECGATE_ADMIN_KEY", "GRAFANA_ADMIN_PASSWORD"])
def test_a_missing_password_is_named(name: str) -> None:
    given = {key: value for key, value in VARIABLES.items() if key != name}
    with pytest.raises(KeyError, match=rf"{name}: set it in \.env"):
        interpolated((COMPOSE / "compose.yaml").read_text(), given)


def test_what_is_mounted_exists() -> None:
    volumes = yaml.safe_load(text("compose.yaml"))["volumes"]
    for name, service in services().items():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                mounted = (COMPOSE / source).resolve()
                # Prometheus' and Grafana's files have tests of their own.
                assert mounted.exists() or mounted.parent.name in ("grafana", "deploy"), volume
            else:
                assert source in volumes, f"{name}: {source} is not declared"


def test_the_build_gets_pips_configuration_as_a_secret() -> None:
    content = yaml.safe_load(text("compose.yaml"))
    (name,) = content["services"]["server"]["build"]["secrets"]
    assert (COMPOSE / content["secrets"][name]["file"]).read_text().startswith("#")
    for dockerfile in ("Dockerfile", "Dockerfile.cpu"):
        assert f"type=secret,id={name}," in (DEPLOY / dockerfile).read_text()


def test_every_service_is_closed_and_says_when_it_is_healthy() -> None:
    for name, service in services().items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "healthcheck" in service or "HEALTHCHECK" in (DEPLOY / "Dockerfile.cpu").read_text()
        _, colon, tag = service["image"].partition(":")
        assert colon
        assert tag != "latest"


def test_prometheus_scrapes_the_server_of_the_stack() -> None:
    (group,) = yaml.safe_load((COMPOSE / "targets" / "specgate.yml").read_text())
    (target,) = group["targets"]
    host, _, port = target.partition(":")
    assert host in services()
    assert services()[host]["ports"][0].endswith(f":{port}")


def test_the_server_has_time_to_stop() -> None:
    file = yaml.safe_load((COMPOSE / "specgate.yaml").read_text())
    timeout_s = file.get("shutdown_timeout_s", Settings.model_fields["shutdown_timeout_s"].default)
    grace = services()["server"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) >= timeout_s + 20


def test_every_variable_is_a_setting() -> None:
    for name in services()["server"]["environment"]:
        assert name.removeprefix("SPECGATE_").lower() in Settings.model_fields
