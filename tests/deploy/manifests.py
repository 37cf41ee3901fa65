"""Reads what is in `deploy/`, and renders the Kubernetes overlays with kubectl."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = ("cpu", "gpu")

Object = dict[str, Any]

needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None,
    reason="kubectl is missing: apt install kubernetes-client; it renders the overlays",
)


def sources() -> dict[str, Object]:
    """Path below `kubernetes/` -> the object in each file that is not a patch."""
    files = [*KUBERNETES.glob("base/*.yaml"), *KUBERNETES.glob("components/*/*.yaml")]
    patches = {
        file.parent / patch["path"]
        for file in files
        if file.name == "kustomization.yaml"
        for patch in read(file).get("patches", [])
        if "path" in patch
    }
    found = {file.relative_to(KUBERNETES).as_posix(): read(file) for file in set(files) - patches}
    return {name: item for name, item in sorted(found.items()) if "apiVersion" in item}


def read(path: Path) -> Object:
    """The one object of a YAML file."""
    content = yaml.safe_load(path.read_text())
    assert isinstance(content, dict), path
    return content


@cache
def rendered(overlay: str) -> tuple[Object, ...]:
    """The objects that `kubectl apply -k` sends for an overlay."""
    return render(KUBERNETES / "overlays" / overlay)


def render(folder: Path) -> tuple[Object, ...]:
    """The objects of any kustomization."""
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def one(objects: tuple[Object, ...], kind: str, prefix: str = "") -> Object:
    """The only object of a kind whose name begins so."""
    (found,) = [
        item
        for item in objects
        if item["kind"] == kind and item["metadata"]["name"].startswith(prefix)
    ]
    return found


def named(objects: tuple[Object, ...], kind: str, name: str) -> Object:
    """The object of a kind with exactly this name."""
    (found,) = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def pod(objects: tuple[Object, ...]) -> Object:
    """The pod of the Deployment."""
    spec: Object = one(objects, "Deployment")["spec"]["template"]["spec"]
    return spec


def server(objects: tuple[Object, ...]) -> Object:
    """The container that serves."""
    (container,) = pod(objects)["containers"]
    return dict(container)


def settings_text(objects: tuple[Object, ...]) -> str:
    """The settings file of the ConfigMap that the server's container mounts."""
    (volume,) = [v for v in pod(objects)["volumes"] if v["name"] == "settings"]
    config = one(objects, "ConfigMap", volume["configMap"]["name"])
    return str(config["data"]["specgate.yaml"])


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """A compose file with its variables filled in, as `docker compose` does it.

    Raises:
        KeyError: a required variable is missing; its message is the file's.
    """

    def value(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        if variables.get(name):
            return variables[name]
        if kind == ":?":
            raise KeyError(f"{name}: {rest}")
        return rest or ""

    return re.sub(r"\$\{(\w+)(?:(:[-?])([^}]*))?\}", value, text)
