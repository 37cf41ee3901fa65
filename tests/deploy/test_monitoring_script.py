"""The script for rules and dashboards, with a kubectl that applies nothing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from cloudcoil.models.prometheus_operator.v1 import PrometheusRule

from tests.deploy.manifests import KUBERNETES, Object, needs_kubectl

RULES = """\
groups:
  - name: proposers
    rules:
      - record: proposer:acceptance:ratio
        expr: 1
"""


@pytest.fixture
def applied(tmp_path: Path) -> list[Object]:
    """The objects that the script gives to `kubectl apply`."""
    (rules := tmp_path / "rules").mkdir()
    (rules / "recording.yml").write_text(RULES)
    (dashboards := tmp_path / "json").mkdir()
    (dashboards / "fleet.json").write_text('{"uid": "fleet"}')
    (stub := tmp_path / "bin").mkdir()
    (stub / "kubectl").write_text(
        '#!/bin/sh\ncase " $* " in *" apply "*) echo "---"; exec cat;; esac\n'
        f'exec {shutil.which("kubectl")} "$@"\n'
    )
    (stub / "kubectl").chmod(0o755)
    done = subprocess.run(
        [KUBERNETES / "monitoring.sh", "observability"],
        env={
            **os.environ,
            "PATH": f"{stub}:{os.environ['PATH']}",
            "RULES": str(rules),
            "DASHBOARDS": str(dashboards),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout.removeprefix("---\n")))


@needs_kubectl
def test_a_rule_file_becomes_an_object_of_the_operator(applied: list[Object]) -> None:
    rule = applied[0]
    known = PrometheusRule.model_validate(rule).model_dump(by_alias=True, exclude_unset=True)
    assert known == rule
    assert rule["metadata"]["name"] == "specgate-recording"
    assert rule["spec"] == yaml.safe_load(RULES)


@needs_kubectl
def test_the_dashboards_are_a_config_map_with_the_sidecars_label(applied: list[Object]) -> None:
    assert len(applied) == 2
    dashboards = applied[1]
    assert dashboards["kind"] == "ConfigMap"
    assert dashboards["metadata"]["namespace"] == "observability"
    assert dashboards["metadata"]["labels"] == {"grafana_dashboard": "1"}
    assert dashboards["data"] == {"fleet.json": '{"uid": "fleet"}'}
