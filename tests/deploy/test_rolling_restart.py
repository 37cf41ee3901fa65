"""A rolling restart behind haproxy loses no request."""

import json
from pathlib import Path

import pytest

from tests.deploy.rehearsal import Plan, haproxy, rehearse

FAKE = ("--engine", "fake", "--engine-args", json.dumps({"fake_step_ms": 40, "fake_length": 4000}))
"""Answers of 500 tokens take longer than the wait before SIGTERM, so that it meets requests."""

pytestmark = [
    pytest.mark.engine,
    pytest.mark.prove,
    pytest.mark.skipif(
        haproxy() is None,
        reason="haproxy is missing: apt install haproxy",
    ),
]


@pytest.mark.parametrize(
    "leave_first", [True, False], ids=["leaves the balancer first", "just stops"]
)
async def test_no_request_is_lost(leave_first: bool, tmp_path: Path) -> None:
    lines: list[str] = []
    report = await rehearse(Plan(FAKE, leave_first, max_tokens=500), tmp_path, lines.append)
    print(*lines, sep="\n")
    assert report.lost == []
    assert report.streams > 20
    assert report.wholes > 20
    met = [line for line in lines if "SIGTERM" in line and " 0 requests" not in line]
    assert met, "no request ran at SIGTERM, so none could be lost"
