"""The init container's script downloads what the ConfigMap lists, with a stand-in for `hf`."""

import os
import subprocess
from pathlib import Path

from tests.deploy import manifests

SCRIPT = manifests.read(manifests.KUBERNETES / "components/model-pull/deployment.yaml")["spec"][
    "template"
]["spec"]["initContainers"][0]


def pull(models: dict[str, str], folder: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs the script with its paths below `folder`."""
    (listed := folder / "list").mkdir()
    for name, repository in models.items():
        (listed / name).write_text(repository)
    (program := folder / "hf").write_text(f'#!/bin/sh\necho "$@"\nexit {status}\n')
    program.chmod(0o755)
    (script,) = SCRIPT["args"]
    text = script.replace("/etc/models", str(listed))
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    command = [*SCRIPT["command"], text]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_each_model_goes_into_its_folder(tmp_path: Path) -> None:
    done = pull({"draft": "example/small", "target": "example/large@v2\n"}, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "download example/small --revision main --local-dir /models/draft",
        "download example/large --revision v2 --local-dir /models/target",
    ]


def test_a_download_that_fails_stops_the_pod(tmp_path: Path) -> None:
    done = pull({"draft": "example/small", "target": "example/large"}, tmp_path, status=3)
    assert done.returncode == 3
    assert len(done.stdout.splitlines()) == 1, "the second download must not begin"
