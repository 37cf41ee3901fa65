"""`POST /tokenize` and `POST /detokenize`."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from server.openai.request import accept
from server.openai.tokenization import detokenize, tokenize
from server.schema.tokenize import DetokenizeRequest, TokenizeRequest
from server.state import ReadyState

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
