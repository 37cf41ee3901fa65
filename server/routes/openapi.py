"""`GET /openapi.json`: the OpenAPI document."""

from typing import Any

from fastapi import APIRouter, Request

router = APIRouter(include_in_schema=False)


@router.get("/openapi.json", response_model=None)
def openapi(request: Request) -> dict[str, Any]:
    """The document of the application."""
    # Not a coroutine: the first call makes the document, which would delay streams.
    document: dict[str, Any] = request.app.openapi()
    return document
