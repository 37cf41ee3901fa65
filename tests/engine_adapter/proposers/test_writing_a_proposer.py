"""The worked example of docs/writing-a-proposer.md, carried out as described there."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documentation import blocks

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/writing-a-proposer.md").read_text("utf-8")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the example's file, its entry in `METHODS` and its test."""
    root = tmp_path_factory.mktemp("tree")
    for part in ("engine_adapter", "tests/engine_adapter/proposers"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    method, test = blocks(PAGE, "python")
    proposers, tests = root / "engine_adapter/proposers", root / "tests/engine_adapter/proposers"
    (proposers / "cycle.py").write_text(method)
    (tests / "test_cycle.py").write_text(test)
    methods = (proposers / "methods.py").read_text("utf-8")
    entries = "METHODS: tuple[ProposerMethod, ...] = (\n"
    assert methods.count(entries) == 1
    extended = methods.replace(
        entries, f"from engine_adapter.proposers import cycle\n\n{entries}    cycle.METHOD,\n"
    )
    (proposers / "methods.py").write_text(extended)
    return root


def run(tree: Path, *command: str) -> str:
    """Runs Python in the copy. Returns its output."""
    done = subprocess.run(
        [sys.executable, *command], cwd=tree, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_passes_its_own_test_and_the_contract_tests(tree: Path) -> None:
    tests = "tests/engine_adapter/proposers"
    printed = run(
        tree,
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "cycle"),
        *(f"{tests}/test_cycle.py", f"{tests}/test_contract.py", f"{tests}/test_methods.py"),
    )
    passed = re.search(r"(\d+) passed", printed)
    assert passed, printed
    assert int(passed[1]) > 15, printed


def test_the_examples_configuration_is_accepted(tree: Path) -> None:
    (configured,) = blocks(PAGE, "json")
    program = (
        "import json, sys; from engine_adapter.proposers.methods import parse_spec\n"
        "print(parse_spec(json.loads(sys.argv[1])))"
    )
    printed = run(tree, "-c", program, configured)
    for value in json.loads(configured).values():
        assert repr(value) in printed


def test_the_example_refuses_an_invalid_option(tree: Path) -> None:
    program = (
        "from engine_adapter.seam.errors import EngineConfigError\n"
        "from engine_adapter.proposers.methods import parse_spec\n"
        "try: parse_spec({'name': 'cycle', 'max_period': 0})\n"
        "except EngineConfigError as error: print(error)"
    )
    assert "cycle: max_period must be" in run(tree, "-c", program)
