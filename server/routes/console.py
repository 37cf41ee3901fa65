"""`/console`: the console's page and its files."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from server.console import pages

router = APIRouter(include_in_schema=False)


@router.get("/console")
async def console(request: Request) -> Response:
    """The page. Its addresses are relative, so that it works behind a path of a proxy."""
    return await pages.file_response(pages.PAGE, request.scope)


@router.get("/console/")
async def console_with_slash() -> Response:
    """The page's relative addresses need the path without the slash."""
    return RedirectResponse("../console")


@router.get("/console/{name}")
async def console_file(name: str, request: Request) -> Response:
    """A script, the style, or the chart library."""
    return await pages.file_response(name, request.scope)
