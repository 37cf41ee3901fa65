"""The commands of the documentation's pages: each is run, or has a reason why another test does it.

`test_readme` runs the requests of the README, of `examples.md` and of `api.md`; the pages of
`docs/lab` are measurements of hours, whose commands `tests/benchmarks` runs with small sizes.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import documentation
from tests.e2e.served import ROOT, Served, environment

pytestmark = pytest.mark.engine

BY_TEST_README = ("docs/examples.md",)
TIMEOUT_S = 900

ELSEWHERE = {
    "make": "it runs the tests themselves, or installs what they need",
    "pip": "tests/test_packaging.py and .ci/run install",
    "docker": "a machine of tests has no Docker; tests/deploy reads its files",
    "kubectl": "a machine of tests has no cluster; tests/deploy/test_kubernetes.py",
    "deploy/kubernetes/monitoring.sh": "a machine of tests has no cluster",
    "systemctl": "a machine of tests has no systemd; tests/deploy checks the unit",
    "balancer": "tests/deploy/test_rolling_restart.py does it",
    "prometheus": "tests/e2e/test_dashboard_queries.py starts it with this file",
    "promtool": "tests/deploy/prometheus/test_rules.py",
}
"""Command -> why it is not run here."""

FRAGMENTS_ELSEWHERE = {
    "python3.11 -m venv": "it installs for a GPU",
    "deploy/haproxy/haproxy.cfg": "tests/deploy/test_balancers.py",
    "127.0.0.1:9090": "a query of Prometheus, which tests/e2e/test_dashboard_queries.py asks",
    "/etc/specgate": "a file of the system",
    "bench_serve.py": "tests/e2e/test_vllm_bench.py",
    "benchmarks.gateway": "tests/benchmarks/gateway",
    "engine_adapter.vllm_engine.releases": "tests/engine_adapter/vllm_engine/test_releases.py",
    "demo.wide": "tests/demo: it is large",
    "bench compare": "tests/benchmarks/commands/test_gain_and_compare.py, with small sizes",
    "--minutes 15": "tests/benchmarks/commands/test_gain_and_compare.py, in less time",
    "other=http": "it needs another server than Specgate",
    ".venv/bin/specgate switch ngram": "it asks a fleet of Ray; tests/server/ray_serve",
    "backend ray": "tests/engine_adapter/vllm_engine/core/test_ray_executor.py",
    "--data-parallel-size 2 --tensor": "tests/e2e/test_data_parallel.py",
    "-tp 2 --max-model-len 32k": "it needs a context of 32,000 tokens; tests/server/settings",
    "specgate serve --config": "tests/deploy/test_settings_files.py",
    "Qwen3-VL": "tests/engine_adapter/vllm_engine/test_media.py",
    "path/to/another-family": "tests/engine_adapter/vllm_engine/test_other_vocabulary.py",
    '"name": "mtp"': "tests/engine_adapter/vllm_engine/test_mtp.py",
    "path/to/adapter": "tests/e2e and tests/engine_adapter/vllm_engine/test_lora.py",
    "authority.pem": "tests/server/commands/test_certificate.py",
    "specgate console": "it opens a browser; tests/server/console",
    "serve path/to/head": "it is refused, as the page says",
    "specgate batch requests.jsonl": "tests/e2e/test_batch.py",
    "fleet-peers": "tests/e2e/test_fleet.py",
    "--write-state": "tests/e2e/test_fleet.py",
    "image_url": "the demo takes no pictures; tests/server/routes/test_media.py",
    "specgate-demo:ngram": "it needs --model-proposers; tests/server/routes",
}
"""A part of a block -> why it is not run here."""

REPLACED = {
    "path/to/target": "demo/models/target",
    "path/to/draft": "demo/models/draft",
    "path/to/head": "demo/models/eagle3",
    "ORG/Qwen3-8B-eagle3": "demo/models/eagle3",
    "Qwen/Qwen3-8B": "demo/models/target",
    "Qwen/Qwen3-0.6B": "demo/models/target",
    "http://specgate-replicas:8000": "http://127.0.0.1:8000",
    "http://127.0.0.1:8001": "http://127.0.0.1:8000",
}
"""What the pages leave to the reader -> what the demo has."""


@dataclass(frozen=True)
class Block:
    """A block of commands of a page."""

    page: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.number}"

    @property
    def commands(self) -> list[list[str]]:
        """Its commands as lists of words."""
        commands, waiting = [], ""
        for line in self.text.replace("\\\n", " ").splitlines():
            waiting += line + "\n"
            try:
                words = shlex.split(waiting, comments=True)
            except ValueError:  # a quote that the next line closes
                continue
            waiting = ""
            if words:
                commands.append(words)
        assert not waiting, self
        return commands

    @property
    def reason(self) -> str:
        """Why it is not run here; empty if it is."""
        reasons = [ELSEWHERE[words[0]] for words in self.commands if words[0] in ELSEWHERE]
        reasons += [why for part, why in FRAGMENTS_ELSEWHERE.items() if part in self.text]
        return "; ".join(reasons)


def blocks() -> Iterator[Block]:
    for page, text in sorted(documentation.read(ROOT).items()):
        if page.startswith("docs/lab") or page in BY_TEST_README:
            continue
        languages = {"README.md": ("sh",), "docs/api.md": ("bash",)}.get(page, ("sh", "bash"))
        texts = [block for name in languages for block in documentation.blocks(text, name)]
        yield from (Block(page, number, block) for number, block in enumerate(texts))


SMALLER = {"bench load": ["--requests", "4", "--repetitions", "1"]}
"""Command -> flags that make a measurement short."""

BLOCKS = list(blocks())
RUN = [block for block in BLOCKS if not block.reason]


def test_each_block_is_run_or_has_a_reason() -> None:
    assert len(RUN) > 15
    text = "".join(block.text for block in BLOCKS)
    programs = {words[0] for block in BLOCKS for words in block.commands}
    assert [part for part in FRAGMENTS_ELSEWHERE if part not in text] == []
    assert ELSEWHERE.keys() <= programs
    for reason in (*ELSEWHERE.values(), *FRAGMENTS_ELSEWHERE.values()):
        for path in re.findall(r"tests/[\w/.]+", reason):
            assert (ROOT / path).exists(), path


@pytest.mark.prove
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("block", RUN, ids=str)
def test_the_commands_of_a_block_succeed(served: Served, tmp_path: Path, block: Block) -> None:
    (tmp_path / "request.json").write_text('{"prompt": "def f(x):"}')
    (tmp_path / "demo").symlink_to(ROOT / "demo")
    for words in block.commands:
        if words[:2] == ["specgate", "serve"]:
            check_server(replaced(words[2:]), tmp_path)
        else:
            run(replaced(words), tmp_path)
    served.switch("none")


def replaced(words: list[str]) -> list[str]:
    """The words with what the demo has."""
    text = "\0".join(("", *words)).replace("\0MODEL", "\0demo/models/target")
    for name, value in REPLACED.items():
        text = text.replace(name, value)
    return text.split("\0")[1:] + SMALLER.get(" ".join(words[1:3]), [])


def run(words: list[str], folder: Path) -> None:
    """Runs a client's command, which must succeed."""
    folder_of_programs = str(Path(sys.executable).parent)
    env = environment() | {"PATH": f"{folder_of_programs}:{os.environ['PATH']}"}
    fails = ["--fail-with-body"] if words[0] == "curl" else []
    done = subprocess.run(
        [words[0], *fails, *words[1:]],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])


def check_server(flags: list[str], folder: Path) -> None:
    """A server with these flags starts, answers and stops."""
    flags = [str(folder / flag) if flag == "state.yaml" else flag for flag in flags]
    server = Served.start_beside(folder / "server.log", *flags)
    try:
        model = server.get("/v1/models").json()["data"][0]["id"]
        body = {"model": model, "prompt": "def f(x):", "max_tokens": 8}
        answer = server.post("/v1/completions", body).json()
        assert answer["choices"][0]["finish_reason"] in ("stop", "length")
        assert server.stop() == 0, server.tail()
    finally:
        server.process.kill()
