"""`specgate batch` on the real engine, as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.served import ROOT, environment
from tests.e2e.traffic import chat

pytestmark = [pytest.mark.engine, pytest.mark.prove, pytest.mark.timeout(600)]

PROPOSERS = ("ngram", "suffix", "draft", "none")


def line(i: int) -> dict[str, Any]:
    proposer = {"proposer": PROPOSERS[i % len(PROPOSERS)]}
    body = chat(i, stream=False, stream_options=None, spec_decode=proposer)
    return {
        "custom_id": f"number {i}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    }


def test_a_batch_is_answered_by_the_named_proposers(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [line(i) for i in range(12)]
    source.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    command = [sys.executable, "-m", "server.cli", "batch", str(source), str(target)]
    done = subprocess.run(
        [*command, "--concurrency", "8"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "12 done, 0 skipped, 0 left, 0 failed" in done.stdout
    assert "Traceback" not in done.stderr
    entries = {
        entry["custom_id"]: entry for entry in map(json.loads, target.read_text().splitlines())
    }
    assert sorted(entries) == sorted(one["custom_id"] for one in lines)
    for i, one in enumerate(lines):
        body = entries[one["custom_id"]]["response"]["body"]
        assert body["usage"]["completion_tokens"] == one["body"]["max_tokens"]
        statistics = body["metrics"]["speculative_decoding"]
        assert statistics["proposer"] == PROPOSERS[i % len(PROPOSERS)]
