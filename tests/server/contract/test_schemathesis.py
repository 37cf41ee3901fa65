"""Schemathesis over our own document: generated requests, valid and invalid, to every operation."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client_tools import python_tool, run
from tests.e2e.served import Served
from tests.server.contract.contract import contract

pytestmark = [pytest.mark.engine, pytest.mark.prove]

LIMIT_S = 300
VERSION = "4.32.5"
SEED = 20261122
EXAMPLES = 20
"""Generated requests per operation and phase, besides those that cover the schema's limits."""

CONFIG = """
# Valid bodies may still be refused: no schema says that a prompt fits the context, or that a
# proposer is loaded.
checks.positive_data_acceptance.enabled = false

# The tool's default, and 413: a list of one message too many may be larger than any body.
checks.negative_data_rejection.expected-statuses = [
    400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, "5xx",
]

# One name is a list of one name: every value of this parameter is valid on the wire.
[[operations]]
include-operation-id = "get_metrics"
checks.negative_data_rejection.enabled = false

# An item whose type is null is a message, like one without a type: a discriminator cannot say so.
[[operations]]
include-operation-id = ["create_conversation", "create_conversation_items"]
checks.negative_data_rejection.enabled = false
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    """A server with keys, so that a route that forgets to ask for one is found."""
    # A short context bounds what a request may generate.
    flags = ["--engine", "fake", "--engine-args", '{"fake_step_ms": 0}', "--max-model-len", "256"]
    keys = ["--api-key", "inference", "--admin-key", "admin"]
    quiet = ["--enable-lora", "--no-access-log", "--files-dir", str(tmp_path / "files")]
    running = Served.start_beside(tmp_path / "server.log", *flags, *keys, *quiet)
    yield running
    assert running.stop() == 0


def test_no_answer_violates_the_document(
    server: Served, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    command = python_tool(pytestconfig, f"schemathesis=={VERSION}", "st")
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    done = run(
        [
            *(command, "--config-file", config, "--no-color", "run"),
            *(f"{server.url}/openapi.json", "--header", "Authorization: Bearer admin"),
            *("--max-examples", EXAMPLES, "--seed", SEED, "--generation-database", "none"),
            *("--continue-on-failure", "--no-shrink", "--request-timeout", 30),
        ],
        LIMIT_S,
        tmp_path,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    operations = len(list(contract().operations()))
    assert f"Tested: {operations}\n" in done.stdout
    found = re.search(r"(\d+) generated, \1 passed", done.stdout)
    assert found is not None
    assert int(found[1]) > 100 * operations
