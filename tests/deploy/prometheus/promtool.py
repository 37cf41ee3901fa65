"""Prometheus' own checker, `promtool`, which comes with Debian's package `prometheus`."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

IN_VENV = Path(sys.executable).parent / "promtool"
"""Where `make test` puts it on a machine that has none."""


def promtool(*arguments: str | Path) -> tuple[int, str]:
    """Its exit status and all its output. Skips the test where it is missing."""
    program = shutil.which("promtool") or (IN_VENV if IN_VENV.exists() else None)
    if program is None:
        pytest.skip("promtool is missing: install Debian's package `prometheus`")
    done = subprocess.run(
        [str(program), *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr
