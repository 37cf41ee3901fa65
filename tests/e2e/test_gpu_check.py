"""`specgate bench gpu` on real engines on the CPU: the command itself works."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from demo import model_path

pytestmark = [pytest.mark.engine, pytest.mark.prove]

PROPOSERS = (
    {"name": "ngram"},
    {"name": "eagle3", "model": str(model_path("eagle3")), "num_speculative_tokens": 4},
)
GREEDY = {"none", "ngram", "eagle3", "switched while they run"}
"""Rows whose texts are compared; those of the others are sampled."""


def test_the_stages_with_one_engine_pass_on_a_cpu(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "server.cli", "bench", "gpu", "--device", "cpu"]
    command += ["--out", str(tmp_path), "--prompts", "2", "--max-tokens", "16"]
    command += ["--stage", "stock", "--stage", "eager", "--stage", "graphs"]
    for fields in PROPOSERS:
        command += ["--proposer", json.dumps(fields)]
    # The compiled models are not kept.
    environment = {**os.environ, "VLLM_CACHE_ROOT": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "gpu-check.json").read_text())
    assert [(one["name"], one["outcome"]) for one in report["results"]] == [
        (name, "passed") for name in ("stock", "eager", "graphs")
    ]
    for stage in report["results"][1:]:
        rows = {row["method"]: row for row in stage["rows"]}
        assert rows["eagle3"]["drafted"] > 0
        texts = {name: row["same texts"] for name, row in rows.items() if "same texts" in row}
        assert {name for name, same in texts.items() if same == "2 of 2"} == GREEDY
        assert {same for name, same in texts.items() if name not in GREEDY} == {"not compared"}
    assert "stages ran; every one passed." in (tmp_path / "gpu-check.md").read_text()
