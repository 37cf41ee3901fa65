"""Tools that the tests do not depend on: each gets an environment of its own, made once.

Their versions are fixed here. They would change versions of what is installed beside the server.
"""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

INSTALL_S = 600


def python_tool(config: pytest.Config, requirement: str, command: str) -> Path:
    """The command of a Python package. Skips the test if no registry has the package.

    The requirement may be several, separated by spaces, for one environment.
    """
    name = requirement.replace("==", "-").replace(" ", "+")
    folder = config.cache.mkdir(name)  # type: ignore[union-attr]
    made = folder / "bin" / command
    if not made.exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        _install([*pip, "install", "--quiet", *requirement.split()], folder)
    return made


def node_tool(config: pytest.Config, package: str, command: str) -> Path:
    """The command of an npm package. Skips the test without npm, or without the package."""
    if (npm := shutil.which("npm")) is None:
        pytest.skip("npm is missing: apt install npm")
    folder = config.cache.mkdir(package.replace("@", "-").replace("/", "-"))  # type: ignore[union-attr]
    made = folder / "node_modules" / ".bin" / command
    if not made.exists():
        _install(
            [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), package], folder
        )
    return made


def source_archive(config: pytest.Config, requirement: str) -> Path:
    """The source archive of a Python package. Skips the test if no registry has it."""
    folder = config.cache.mkdir(requirement.replace("==", "-"))  # type: ignore[union-attr]
    if not list(folder.glob("*.tar.gz")):
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        only_sources = ["--no-deps", "--no-binary", ":all:", "--dest", str(folder)]
        _install([*pip, *only_sources, requirement], folder)
    (archive,) = folder.glob("*.tar.gz")
    return archive


def _install(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
    if done.returncode:
        shutil.rmtree(folder)
        pytest.skip(f"{command[-1]} cannot be installed: {(done.stderr or done.stdout)[-300:]}")


def run(
    command: list[str | int | Path], seconds: float, cwd: Path
) -> "subprocess.CompletedProcess[str]":
    """Runs a tool without this process's settings and proxies; prints what it says."""
    clean = {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/nonexistent",
    }
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=seconds,
        env=clean,
        cwd=cwd,
    )
    print(done.stdout[-20000:], done.stderr[-5000:])
    return done
