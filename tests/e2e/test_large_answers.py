"""Whole answers of 32,000 tokens with 20 log probabilities each hold no other request up."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.peak import Peak
from tests.e2e.served import Served

pytestmark = [pytest.mark.engine, pytest.mark.prove, pytest.mark.timeout(900)]

CHOICES, TOKENS, ALTERNATIVES = 16, 2000, 20
MOST_WAIT_S = 0.5
"""For `/health` while an answer is made, on a machine that does nothing else."""

PROMPT = "Tell me a long story."
FIELDS = {"model": "specgate-demo", "n": CHOICES, "max_tokens": TOKENS, "ignore_eos": True}
CHAT = FIELDS | {
    "messages": [{"role": "user", "content": PROMPT}],
    "logprobs": True,
    "top_logprobs": ALTERNATIVES,
}
COMPLETION = FIELDS | {"prompt": PROMPT, "logprobs": ALTERNATIVES}


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)],
    ids=["chat", "completion"],
)
def test_a_large_whole_answer_holds_no_other_request_up(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    engine = json.dumps({"fake_step_ms": 5})
    flags = "--engine", "fake", "--engine-args", engine, "--max-model-len", "4096"
    served = Served.start_beside(tmp_path / "log", *flags)
    try:
        gateway = psutil.Process(served.process.pid)

        def cpu_s() -> float:
            return sum(gateway.cpu_times()[:2])

        waits: list[float] = []
        used_s = cpu_s()
        with (
            httpx.Client(base_url=served.url, timeout=600) as client,
            httpx.Client(base_url=served.url, timeout=60) as prober,
            Peak(served.process.pid) as peak,
            ThreadPoolExecutor(1) as pool,
        ):
            answer = pool.submit(client.post, path, json=body)
            while not answer.done():
                began = time.monotonic()
                assert prober.get("/health").status_code == 200
                waits.append(time.monotonic() - began)
                time.sleep(0.01)
            used_s = cpu_s() - used_s
            whole = answer.result()
        assert whole.status_code == 200, whole.text[:300]
        grown = (peak.most - peak.before) / 2**20
        print(
            f"| {path} | {len(whole.content) / 1e6:.0f} MB | {grown:+.0f} MiB | {used_s:.1f} s "
            f"| {sorted(waits)[len(waits) // 2]:.3f} | {max(waits):.3f} |"
        )
        choices = whole.json()["choices"]
        num_tokens = [len(_tokens(choice["logprobs"])) for choice in choices]
        assert num_tokens == [TOKENS] * CHOICES
        assert max(waits) < MOST_WAIT_S
    finally:
        served.stop()


def _tokens(logprobs: dict[str, Any]) -> list[Any]:
    tokens: list[Any] = logprobs["content"] if "content" in logprobs else logprobs["tokens"]
    return tokens
