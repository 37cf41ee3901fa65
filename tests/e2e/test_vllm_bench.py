"""`vllm bench serve` against this server, as docs/benchmarks.md says: its acceptance is ours."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import documentation
from tests.e2e.served import MODEL, ROOT, Served, environment

pytestmark = [pytest.mark.prove, pytest.mark.engine, pytest.mark.timeout(300)]

SECTION = documentation.section(
    (ROOT / "docs/benchmarks.md").read_text("utf-8"), "`vllm bench serve`"
)


def documented_command(script: Path) -> list[str]:
    """The documented command, with this process's Python."""
    (command,) = documentation.blocks(SECTION, "sh")
    python, name, *arguments = shlex.split(command.replace("\\\n", " "))
    assert (python, name) == (".venv/bin/python", "bench_serve.py")
    return [sys.executable, str(script), *arguments]


def printed(output: str, label: str) -> float:
    found = re.search(rf"^{re.escape(label)}:?\s+([\d.]+)", output, re.MULTILINE)
    assert found, output[-4000:]
    return float(found[1])


@pytest.mark.parametrize("proposer", ["ngram", "draft"])
def test_its_acceptance_is_that_of_the_counters(
    served: Served, tmp_path: Path, proposer: str
) -> None:
    (program,) = documentation.blocks(SECTION, "python")
    script = tmp_path / "bench_serve.py"
    script.write_text(program)
    body = json.dumps({"spec_decode": {"proposer": proposer}, "ignore_eos": True})
    served.wait_until_idle()
    before = served.scrape()
    done = subprocess.run(
        [*documented_command(script), "--extra-body", body],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    served.wait_until_idle()
    after = served.scrape()

    def grown(name: str, **labels: str) -> float:
        return after(name, **labels) - before(name, **labels)

    for prefix, labels in (
        ("vllm:spec_decode_num_", {"model_name": MODEL}),
        ("specgate_spec_decode_", {"proposer": proposer}),
    ):
        drafts = grown(f"{prefix}drafts_total", **labels)
        drafted = grown(f"{prefix}draft_tokens_total", **labels)
        accepted = grown(f"{prefix}accepted_tokens_total", **labels)
        assert drafted > 0
        assert printed(done.stdout, "Drafts") == drafts
        assert printed(done.stdout, "Draft tokens") == drafted
        assert printed(done.stdout, "Accepted tokens") == accepted
        rate, length = 100 * accepted / drafted, 1 + accepted / drafts
        assert printed(done.stdout, "Acceptance rate (%)") == pytest.approx(rate, abs=0.01)
        assert printed(done.stdout, "Acceptance length") == pytest.approx(length, abs=0.01)
    assert printed(done.stdout, "Successful requests") == 32
