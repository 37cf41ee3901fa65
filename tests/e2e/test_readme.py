"""The examples of the documentation, run unchanged."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import documentation
from tests.e2e.served import MODEL, ROOT, Served, environment

pytestmark = pytest.mark.engine

README = (ROOT / "README.md").read_text()
PAGES = README + (ROOT / "docs/examples.md").read_text()
CURLS = [block for block in documentation.blocks(PAGES, "bash") if "curl" in block]
PYTHON = documentation.blocks(README, "python")
API_CURLS = documentation.blocks((ROOT / "docs/api.md").read_text(), "sh")
TIMEOUT_S = 240
METRICS_PAGE = (ROOT / "docs/metrics.md").read_text()


@pytest.fixture(scope="module")
def curl_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose .curlrc makes curl print the status on standard error."""
    home = tmp_path_factory.mktemp("curl")
    (home / ".curlrc").write_text('silent\nshow-error\nwrite-out = "%{stderr}HTTP %{http_code}"\n')
    return home


def run(block: str, curl_home: Path) -> str:
    """The output of a block of shell; every curl in it must get a 200."""
    env = environment() | {"CURL_HOME": str(curl_home)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "HTTP 200" * block.count("curl "), (done.stderr, done.stdout)
    return done.stdout


def test_the_pages_have_examples_to_run() -> None:
    assert len(CURLS) == 13
    assert len(PYTHON) == 1
    assert len(API_CURLS) == 12


@pytest.mark.parametrize("block", CURLS, ids=range(len(CURLS)))
def test_a_curl_of_the_readme_and_the_examples(served: Served, curl_home: Path, block: str) -> None:
    output = run(block, curl_home)
    if block.rstrip().endswith("/metrics"):
        assert "specgate_spec_decode_drafts_total{" in output
    elif '"stream": true' in block:
        check_stream(output)
    else:
        answer = json.loads(output)
        if '"model"' in block:
            assert answer["model"] == MODEL
            assert answer["choices"][0]["finish_reason"] in {"stop", "length"}
            assert answer["metrics"]["speculative_decoding"]["proposer"]
        else:
            assert {"active", "spec_method"} & set(answer)


def check_stream(output: str) -> None:
    """Checks a whole stream of a chat, with usage and statistics on the last chunk."""
    lines = [line for line in output.split("\n\n") if line and not line.startswith(":")]
    *events, done = [line.removeprefix("data: ") for line in lines]
    assert done == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    assert chunks[-1]["metrics"]["speculative_decoding"]["num_spec_tokens"] >= 0


def test_the_python_client_of_the_readme(served: Served, tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text(PYTHON[0])
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    (documented,) = [text for text in documentation.blocks(README, "") if "tokens per step" in text]
    assert tokens_per_step(done.stdout) == tokens_per_step(documented)
    assert set(tokens_per_step(documented)) == {"none", "ngram", "eagle3"}


def tokens_per_step(printed: str) -> dict[str, str]:
    """Proposer -> its figure."""
    return dict(re.findall(r"^(\S+): \S+ s, (\S+) tokens per step$", printed, re.MULTILINE))


@pytest.mark.parametrize("block", API_CURLS, ids=range(len(API_CURLS)))
def test_a_curl_of_the_api_page(served: Served, curl_home: Path, block: str) -> None:
    # A response always has the field; it is null unless the response failed.
    assert json.loads(run(block, curl_home)).get("error") is None


def test_the_api_pages_token_ids_are_the_demos(served: Served) -> None:
    answer: Any = served.post("/tokenize", {"prompt": "def f", "return_token_strs": True}).json()
    (documented,) = (
        json.loads(block)
        for block in documentation.blocks((ROOT / "docs/api.md").read_text(), "json")
        if '"token_strs"' in block
    )
    assert answer == documented
    assert served.post("/detokenize", {"tokens": answer["tokens"]}).json() == {
        "prompt": "<|bos|>def f"
    }


def test_the_metrics_of_the_metrics_page_are_exported(served: Served) -> None:
    named = [cells[0].strip("`") for cells in documentation.rows(METRICS_PAGE)]
    named = [name for name in named if name.startswith(("vllm:", "specgate_"))]
    assert len(named) > 30
    # The series of rules exist while there are rules.
    body = {"rules": [{"name": "a", "use": {"proposer": "auto"}}]}
    for rules in (body, {"rules": []}):
        response = httpx.put(f"{served.url}/v1/spec_policy", json=rules, trust_env=False)
        assert response.status_code == 200, response.text
    names = served.scrape().names
    assert [n for n in named if n not in names and f"{n}_count" not in names] == []
