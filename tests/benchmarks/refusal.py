"""A command line that must be refused."""

from collections.abc import Callable, Sequence

import pytest

from server.commands import BAD_SETTING


def complaint(
    command: Callable[[Sequence[str]], int],
    words: Sequence[str],
    capsys: pytest.CaptureFixture[str],
) -> str:
    """What a command says on one line when it refuses these arguments."""
    try:
        status = command(words)
    except SystemExit as ended:
        status = int(ended.code or 0)
    captured = capsys.readouterr()
    assert status == BAD_SETTING
    assert captured.out == "", "nothing was measured"
    assert captured.err.startswith("specgate: error: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("specgate: error: ").rstrip()
