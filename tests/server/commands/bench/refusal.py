"""A command line that must be refused."""

import pytest

from server.cli import main
from server.commands import BAD_SETTING


def complaint(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What `specgate bench` says on one line when it refuses these arguments."""
    try:
        status = main(["bench", *words])
    except SystemExit as ended:
        status = int(ended.code or 0)
    captured = capsys.readouterr()
    assert status == BAD_SETTING
    assert captured.out == "", "nothing was measured"
    assert captured.err.startswith("specgate: error: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("specgate: error: ").rstrip()
