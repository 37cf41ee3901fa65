"""The settings files of the manifests and of compose start a server; bad ones say what is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from demo import model_path
from server.settings import Settings
from server.settings.sources import load_settings
from server.settings.types import SettingsError
from tests.deploy import manifests
from tests.deploy.manifests import DEPLOY, KUBERNETES, ROOT
from tests.e2e.served import Served, environment

pytestmark = pytest.mark.engine

FILES = {
    "cpu": KUBERNETES / "base" / "specgate.yaml",
    "gpu": KUBERNETES / "overlays" / "gpu" / "specgate.yaml",
    "compose": DEPLOY / "compose" / "specgate.yaml",
}


def on_this_machine(text: str) -> str:
    """The file with the demo's models in place of those that a pod has in `/models`."""
    return text.replace("/models/target", str(model_path("target"))).replace(
        "/models/draft", str(model_path("draft"))
    )


def written(settings: str, folder: Path) -> str:
    """The path of a settings file."""
    (file := folder / "specgate.yaml").write_text(settings)
    return str(file)


def check_that_it_serves(served: Served, settings: Settings) -> None:
    """A request, the proposers and the stop of a server with these settings."""
    try:
        body = {"model": settings.served_model_name[0], "prompt": "a", "max_tokens": 3}
        answer = served.post("/v1/completions", body).json()
        assert answer["usage"]["completion_tokens"] == 3
        loaded = {item["name"] for item in served.get("/v1/proposers").json()["data"]}
        assert {*settings.proposer_names, "prediction"} == loaded
    finally:
        assert served.stop() == 0, served.tail()


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_valid(name: str, tmp_path: Path) -> None:
    config = written(on_this_machine(FILES[name].read_text()), tmp_path)
    settings = load_settings(["--config", config], {})
    assert len(settings.proposer) >= 3


def test_a_server_starts_with_the_file(tmp_path: Path) -> None:
    config = written(on_this_machine(FILES["gpu"].read_text()), tmp_path)
    flags = ("--config", config, "--engine", "fake", "--shutdown-delay-s", "0")
    served = Served.start_beside(tmp_path / "server.log", *flags)
    check_that_it_serves(served, load_settings(flags, {}))


@pytest.mark.prove
def test_an_engine_starts_with_the_file(tmp_path: Path) -> None:
    text = on_this_machine(FILES["gpu"].read_text()).replace("gpu_memory_utilization: 0.9\n", "")
    flags = ("--config", written(text, tmp_path), "--dtype", "float32", "--max-model-len", "2048")
    check_that_it_serves(
        Served.start_beside(tmp_path / "server.log", *flags), load_settings(flags, {})
    )


@manifests.needs_kubectl
@pytest.mark.parametrize("overlay", manifests.OVERLAYS)
def test_the_pod_mounts_that_file_unchanged(overlay: str) -> None:
    objects = manifests.rendered(overlay)
    assert manifests.settings_text(objects) == FILES[overlay].read_text()
    mounts = {m["name"]: m["mountPath"] for m in manifests.server(objects)["volumeMounts"]}
    assert manifests.server(objects)["args"] == [
        *("serve", "--config", f"{mounts['settings']}/specgate.yaml")
    ]


BAD = [
    ("shutdown_timeout: 30\n", "shutdown_timeout", "here: --shutdown-timeout-s"),
    ("primary: large\n", "primary", "there is no proposer 'large' (proposers: ngram,"),
    ("spec_method: large\n", "spec_method", "large"),
    ("proposer: [{name: ngram, method: n-gram}]\n", "proposer", "n-gram"),
    ("port: [\n", "--config", "is not valid YAML"),
]


@pytest.mark.parametrize(("settings", "setting", "reason"), BAD)
def test_a_bad_file_is_refused_with_its_reason(
    settings: str, setting: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError) as refusal:
        load_settings(["--config", written(settings, tmp_path)], {})
    (line,) = refusal.value.lines
    assert setting in line
    assert reason in line


def test_a_server_with_a_bad_file_ends_before_it_loads(tmp_path: Path) -> None:
    settings, setting, reason = BAD[1]
    config = written(settings, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "server.cli", "serve", "--config", config, "--port", "0"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, "systemd starts it again after every other status"
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"specgate: error: {setting} in {config}: {reason}")


def test_the_reason_is_shown_with_the_pod() -> None:
    deployment = manifests.read(KUBERNETES / "base" / "deployment.yaml")["spec"]
    (container,) = deployment["template"]["spec"]["containers"]
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
