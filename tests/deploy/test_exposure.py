"""What deploy/ starts: with its keys, or with a decision to do without; and not otherwise."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from server.commands.serve import check_exposure
from server.settings.access_settings import KEY_SETTINGS
from server.settings.keys import Role
from server.settings.sources import load_settings
from server.settings.types import SettingsError
from tests.deploy import manifests
from tests.deploy.manifests import DEPLOY, OVERLAYS, needs_kubectl
from tests.deploy.test_compose import VARIABLES, services

BOTH = pytest.mark.parametrize("image", ["Dockerfile", "Dockerfile.cpu"])


def image_variables(image: str) -> dict[str, str]:
    """The variables that an image sets for the server."""
    found = re.findall(r"(SPECGATE_[A-Z_]+)=(\S+)", (DEPLOY / image).read_text())
    assert found
    return dict(found)


def check_start(variables: Mapping[str, str], file: Path) -> frozenset[Role]:
    """The roles that have a key in a server that starts so; raises if it does not start."""
    settings = load_settings(["--config", str(file), "--engine", "fake"], variables)
    check_exposure(settings)
    keys = settings.read_keys()
    return frozenset(role for role in Role if keys.has(role))


def compose_variables(env_file: Mapping[str, str]) -> dict[str, str]:
    """The server's variables in the container, with what .env has.

    A variable without a value is passed on if .env has it.
    """
    given = services()["server"]["environment"]
    values = {name: env_file.get(name) if value is None else value for name, value in given.items()}
    set_by_image = image_variables("Dockerfile.cpu")
    return set_by_image | {name: value for name, value in values.items() if value is not None}


@BOTH
def test_an_image_does_not_start_without_a_key(image: str) -> None:
    settings_file = DEPLOY / "compose" / "specgate.yaml"
    with pytest.raises(SettingsError, match=r"SPECGATE_HOST: 0\.0\.0\.0 can be reached"):
        check_start(image_variables(image), settings_file)
    keyed = image_variables(image) | {"SPECGATE_API_KEY": "key"}
    assert check_start(keyed, settings_file) == {Role.API}


def test_compose_starts_with_the_env_file_of_the_page() -> None:
    file = DEPLOY / "compose" / "specgate.yaml"
    assert check_start(compose_variables(VARIABLES), file) == {Role.ADMIN}
    more = {**VARIABLES, "SPECGATE_API_KEY": "api", "SPECGATE_METRICS_KEY": "metrics"}
    assert check_start(compose_variables(more), file) == set(Role)


def test_composes_port_is_open_to_this_machine_only_as_it_needs_no_key() -> None:
    assert services()["server"]["environment"]["SPECGATE_INSECURE"] == "true"
    assert all(port.startswith("127.0.0.1:") for port in services()["server"]["ports"])


def test_the_systemd_unit_listens_on_loopback_by_default() -> None:
    unit = (DEPLOY / "systemd" / "specgate@.service").read_text()
    assert "SPECGATE_HOST" not in unit
    assert "--host" not in unit
    file = DEPLOY / "compose" / "specgate.yaml"
    assert check_start({"SPECGATE_ADMIN_KEY": "root"}, file) == {Role.ADMIN}


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_starts_with_all_its_keys(overlay: str, tmp_path: Path) -> None:
    variables = image_variables("Dockerfile")
    for item in manifests.server(manifests.rendered(overlay))["env"]:
        reference = item.get("valueFrom", {}).get("secretKeyRef")
        variables[item["name"]] = reference["key"] if reference else item["value"]
    (file := tmp_path / "specgate.yaml").write_text(yaml.safe_dump({"log_json": True}))
    assert check_start(variables, file) == set(Role)
    opening = {f"SPECGATE_{name.upper()}" for name in KEY_SETTINGS} & variables.keys()
    assert len(opening) == len(Role)
    for name in opening:
        with pytest.raises(SettingsError, match=f"{name}: must not be empty"):
            check_start({**variables, name: ""}, file)
