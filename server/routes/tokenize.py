"""`POST /tokenize` and `POST /detokenize`."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from server.openai.request import check_body
from server.openai.tokenization import detokenize, tokenize
from server.schema.tokenize import DetokenizeRequest, TokenizeRequest
from server.state import ReadyRuntime

router = APIRouter()


@router.post("/tokenize", response_model=None)
async def post_tokenize(body: TokenizeRequest, runtime: ReadyRuntime) -> JSONResponse:
    """The token ids of a text or a chat."""
    checked = check_body(runtime, body)
    return JSONResponse(await tokenize(runtime, body), headers=checked.headers())


@router.post("/detokenize", response_model=None)
async def post_detokenize(body: DetokenizeRequest, runtime: ReadyRuntime) -> JSONResponse:
    """The text of token ids."""
    checked = check_body(runtime, body)
    return JSONResponse(detokenize(runtime, body), headers=checked.headers())
