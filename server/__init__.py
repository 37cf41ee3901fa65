"""The gateway: OpenAI's HTTP interface over an `engine_adapter.seam.interface.Engine`."""

from importlib import metadata


def _version() -> str:
    try:
        return metadata.version("specgate")
    except metadata.PackageNotFoundError:
        return "0+source"


__version__ = _version()
"""The installed distribution's version; `0+source` where it runs uninstalled."""
