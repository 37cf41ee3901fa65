"""The files of `deploy/ray/`: their settings start a server, and their numbers fit together."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from demo import model_path
from server.ray_serve.user_config import read_user_config
from server.settings.sources import settings_in
from server.settings.types import SettingsError
from tests import ray_cluster
from tests.deploy.manifests import DEPLOY, ROOT, read

SERVE = DEPLOY / "ray" / "serve.yaml"
RAYSERVICE = DEPLOY / "ray" / "rayservice.yaml"


def configs() -> dict[str, Any]:
    """File -> its Serve config."""
    inner = read(RAYSERVICE)["spec"]["serveConfigV2"]
    return {"serve.yaml": read(SERVE), "rayservice.yaml": yaml.safe_load(inner)}


def pods() -> Iterator[dict[str, Any]]:
    """The pods' specs of the RayService."""
    cluster = read(RAYSERVICE)["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        yield group["template"]["spec"]


each_config = pytest.mark.parametrize("name", configs())


@each_config
def test_the_settings_and_the_method_can_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (application,) = configs()[name]["applications"]
    args = yaml.safe_dump(application["args"])
    for model in ("target", "draft"):
        args = args.replace(f"/models/{model}", str(model_path(model)))
    settings = settings_in(yaml.safe_load(args), "args", {"SPECGATE_API_KEY": "k" * 24})
    (deployment,) = application["deployments"]
    method = read_user_config(deployment["user_config"]).spec_method
    assert method in ("auto", "none", *settings.proposer_names)
    assert application["import_path"] == "server.ray_serve.deployment:app"


@pytest.mark.filterwarnings("default")  # those of Ray's own code
@each_config
def test_serve_takes_the_config(name: str) -> None:
    pytest.importorskip("ray", reason=ray_cluster.ABSENT)
    from ray.serve.schema import ServeDeploySchema

    written = configs()[name]["applications"][0]
    (application,) = ServeDeploySchema.model_validate(configs()[name]).applications
    assert (application.name, application.import_path) == (written["name"], written["import_path"])
    assert application.args == written["args"]
    ((deployment,), (given,)) = application.deployments, written["deployments"]
    assert (deployment.name, deployment.user_config) == (given["name"], given["user_config"])


def test_a_fault_in_the_arguments_is_named() -> None:
    with pytest.raises(SettingsError, match=r"max_num_seq in args: unknown setting.*max_num_seqs"):
        settings_in({"max_num_seq": 3}, "args", {})
    with pytest.raises(SettingsError, match="max_num_seqs in args: "):
        settings_in({"max-num-seqs": 0}, "args", {})


def test_a_pod_ends_later_than_its_replica_may_take() -> None:
    (deployment,) = configs()["rayservice.yaml"]["applications"][0]["deployments"]
    for pod in pods():
        assert pod["terminationGracePeriodSeconds"] > deployment["graceful_shutdown_timeout_s"]


def test_every_pod_has_the_keys_and_the_image() -> None:
    (page,) = re.findall(
        r"EXTRAS=vllm,console,ray -t (\S+) \.", (ROOT / "docs/deploy.md").read_text()
    )
    for pod in pods():
        (container,) = pod["containers"]
        assert container["image"] == page
        assert [variable["name"] for variable in container["env"]] == [
            "SPECGATE_API_KEY",
            "SPECGATE_ADMIN_KEY",
            "SPECGATE_METRICS_KEY",
        ]
        assert pod["enableServiceLinks"] is False


def test_the_release_of_ray_is_the_one_of_the_tests() -> None:
    (pinned,) = re.findall(r"^ray==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert read(RAYSERVICE)["spec"]["rayClusterConfig"]["rayVersion"] == pinned


def test_the_two_commands_of_a_fresh_clone() -> None:
    (line,) = re.findall(r"serve run (\S+) ", (ROOT / "Makefile").read_text())
    assert ROOT / line == SERVE
    page = (ROOT / "docs" / "deploy.md").read_text()
    assert "\nmake ray\n" in page
    assert "\n.venv/bin/specgate switch ngram\n" in page
