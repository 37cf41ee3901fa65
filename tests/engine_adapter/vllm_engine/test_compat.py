"""The list of private vLLM names: all exist, none is imported elsewhere, none too early."""

import ast
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from engine_adapter.vllm_engine import compat

ROOT = Path(__file__).parents[3]
ADAPTER = ROOT / "engine_adapter"

PUBLIC = {"AsyncEngineArgs", "SamplingParams"}
"""What is imported from vLLM's top level, which is its public face."""


@pytest.mark.vllm
@pytest.mark.parametrize("name", compat.NAMES)
def test_every_listed_name_exists(name: str) -> None:
    assert getattr(compat, name) is not None


@pytest.mark.vllm
def test_a_module_is_found_even_if_nothing_imported_it_before() -> None:
    program = "from engine_adapter.vllm_engine import compat; compat.cpu_worker.CPUModelRunner"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stderr[-2000:]


def test_a_name_that_is_not_listed_is_refused() -> None:
    with pytest.raises(AttributeError, match=r"'LLMEngine' is not listed in .*compat\.NAMES"):
        _ = compat.LLMEngine


def test_using_the_list_imports_nothing() -> None:
    program = (
        "import sys; from engine_adapter.vllm_engine import compat; compat.installed_version();"
        "assert not {'torch', 'vllm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def imports_of_vllm(file: Path) -> set[str]:
    """Every dotted name under `vllm` that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "vllm"}


def test_no_other_file_imports_private_names_of_vllm() -> None:
    allowed = {f"vllm.{name}" for name in PUBLIC}
    private = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in ADAPTER.rglob("*.py")
        for name in imports_of_vllm(file) - allowed
    }
    assert not private


def test_every_listed_name_is_used() -> None:
    sources = [file.read_text() for file in ADAPTER.rglob("*.py") if file.name != "compat.py"]
    unused = {name for name in compat.NAMES if not any(f"compat.{name}" in s for s in sources)}
    assert not unused


@pytest.mark.parametrize("distribution", compat.DISTRIBUTIONS)
def test_either_distribution_tells_the_version(
    monkeypatch: pytest.MonkeyPatch, distribution: str
) -> None:
    def version(name: str) -> str:
        if name != distribution:
            raise metadata.PackageNotFoundError(name)
        return "0.32.7"

    monkeypatch.setattr(metadata, "version", version)
    assert compat.installed_version() == "0.32.7"


def test_without_a_distribution_there_is_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert compat.installed_version() is None
