"""The console's files: its page, style and scripts, and the chart library of the extra `console`.

The page is static. The browser holds the key and calls the public API, so the console adds no
session, no state and no route with effects to the gateway.
"""

from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

PATH = "/console"
PAGE = "index.html"

_OWN = Path(__file__).parent / "static"
_CHARTS = "plotly.min.js"

# Plotly sets styles of elements and shows images that it draws itself. Nothing else may load, and
# no other page may show the console in a frame, where it could steal a click.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # Checked by its ETag at every visit: an upgraded server must not meet an old script.
    "Cache-Control": "no-cache",
}


def installed() -> bool:
    """Whether the extra `console` is installed."""
    return _chart_folder() is not None


def is_console_path(path: str) -> bool:
    """Whether the path is the page or one of its files, none of which reveals anything."""
    return path == PATH or path.startswith(f"{PATH}/")


async def file_response(name: str, scope: Scope) -> Response:
    """One file, or 304 if the browser has it. Raises `HTTPException` (404) for an unknown name."""
    folder = _chart_folder() if name == _CHARTS else _OWN
    response = await StaticFiles(directory=folder).get_response(name, scope)
    response.headers.update(_HEADERS)
    return response


@cache
def _chart_folder() -> Path | None:
    """Where Plotly keeps its script; importing Plotly for that would take a second."""
    try:
        folder = Path(str(distribution("plotly").locate_file("plotly/package_data")))
    except PackageNotFoundError:
        return None
    return folder if (folder / _CHARTS).is_file() else None
