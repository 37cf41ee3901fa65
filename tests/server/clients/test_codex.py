"""Codex' command line finishes a session: several shell calls, an edit, and a call beside them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client_tools import node_tool, run
from tests.server.threaded import ThreadedServer

pytestmark = pytest.mark.prove

PACKAGE = "@openai/codex@0.169.0"
LIMIT_S = 240


def call(name: str, **arguments: Any) -> str:
    text = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{text}\n</tool_call>"


PATCH = """apply_patch <<'EOF'
*** Begin Patch
*** Update File: greeting.py
@@
-print("hello")
+print("good morning")
*** End Patch
EOF"""

# What is in the prompt decides, the first that fits: so the later turns come first.
ANSWERS = {
    "prints good morning": "All is done.",
    "Updated the following files": "It is changed. "
    + call("exec_command", cmd="echo It prints $(python3 greeting.py)"),
    "turn two": call("exec_command", cmd=PATCH),
    "turn one": call("exec_command", cmd="cat greeting.py; echo turn two"),
    "change the greeting": "I look. " + call("exec_command", cmd="ls; echo turn one"),
}


@pytest.fixture
def server() -> Iterator[ThreadedServer]:
    """A server whose engine has the answers of the session."""
    running = ThreadedServer(
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
        max_model_len=200_000,
        engine_args={"fake_answers": ANSWERS},
    ).start()
    yield running
    running.stop()


def test_a_session_of_codex_edits_a_file(
    server: ThreadedServer, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    command = node_tool(pytestconfig, PACKAGE, "codex")
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    (folder / "greeting.py").write_text('print("hello")\n')
    provider = f'{{name="specgate", base_url="{server.url}/v1", wire_api="responses"}}'
    options = {
        "model_provider": '"specgate"',
        "model_providers.specgate": provider,
        "model": '"specgate-demo:ngram"',
    }
    settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
    # The container has no sandbox of its own; the commands are those above.
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    env = ["env", f"CODEX_HOME={home}"]
    done = run([*env, command, "exec", *flags, *settings, "change the greeting"], LIMIT_S, folder)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("All is done.")
    assert (folder / "greeting.py").read_text() == 'print("good morning")\n'
    # Its only way to choose a proposer is the model's name.
    labels = {"proposer": "ngram", "selected_by": "request"}
    assert server.registry.get_sample_value("specgate_requests_total", labels) == len(ANSWERS)
