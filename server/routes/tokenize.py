"""`POST /tokenize` and `POST /detokenize`."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from server.dependencies import ReadyState
from server.schema.tokenize import DetokenizeRequest, TokenizeRequest
from server.serving.admission import accept
from server.serving.tokenization import detokenize, tokenize

router = APIRouter()


@router.post("/tokenize", response_model=None)
async def post_tokenize(body: TokenizeRequest, state: ReadyState) -> JSONResponse:
    """The token ids of a text or a chat."""
    accepted = accept(state, body)
    return JSONResponse(await tokenize(state, body), headers=accepted.headers())


@router.post("/detokenize", response_model=None)
async def post_detokenize(body: DetokenizeRequest, state: ReadyState) -> JSONResponse:
    """The text of token ids."""
    accepted = accept(state, body)
    return JSONResponse(detokenize(state, body), headers=accepted.headers())
