"""`GET /openapi.json`: the OpenAPI document."""

from fastapi import APIRouter, Request, Response

router = APIRouter(include_in_schema=False)


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """The document of the application."""
    document: bytes = await request.app.state.openapi_document.encoded()
    return Response(document, media_type="application/json")
