"""What the interpreter does at the end of a process, in processes."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys
from engine_adapter.seam.process_end import skip_last_collection

class Part:
    def __del__(self):
        print("collected")
        print("a leak", file=sys.stderr)

part = Part()
part.itself = part
print("works")
print("a line", file=sys.stderr)
if {skips}:
    atexit.register(skip_last_collection)
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("skips", "out", "err"),
    [(True, ["works"], ["a line"]), (False, ["works", "collected"], ["a line", "a leak"])],
)
def test_the_end_collects_nothing_and_reports_nothing(
    skips: bool, out: list[str], err: list[str]
) -> None:
    command = [sys.executable, "-c", PROGRAM.format(skips=skips)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (process.stdout.split("\n")[:-1], process.stderr.split("\n")[:-1]) == (out, err)
    assert process.returncode == 3
