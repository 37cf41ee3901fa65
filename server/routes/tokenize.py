"""`POST /tokenize` and `POST /detokenize`, and `GET /tokenizer_info`."""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from server.contract.answers import KEY_LIMIT_ERRORS, answers
from server.http.headers import IGNORED_FIELDS
from server.openai.body_checks import check_body
from server.openai.tokenization import detokenize, tokenize
from server.schema.answers import DetokenizeResponse, TokenizeResponse, TokenizerInfo
from server.schema.chat import DetokenizeRequest, TokenizeRequest
from server.state import ReadyRuntime, StartedRuntime

router = APIRouter(tags=["Tokens"])


@router.post(
    "/tokenize",
    operation_id="tokenize",
    response_model=None,
    responses=answers(
        TokenizeResponse,
        headers=(IGNORED_FIELDS,),
        errors={404: "model_not_found", **KEY_LIMIT_ERRORS},
    ),
)
async def post_tokenize(body: TokenizeRequest, runtime: ReadyRuntime) -> JSONResponse:
    """The token ids of a text or a chat."""
    checked_body = check_body(runtime, body)
    return JSONResponse(await tokenize(runtime, body), headers=checked_body.headers())


@router.post(
    "/detokenize",
    operation_id="detokenize",
    response_model=None,
    responses=answers(
        DetokenizeResponse,
        headers=(IGNORED_FIELDS,),
        errors={404: "model_not_found", **KEY_LIMIT_ERRORS},
    ),
)
async def post_detokenize(body: DetokenizeRequest, runtime: ReadyRuntime) -> JSONResponse:
    """The text of token ids."""
    checked_body = check_body(runtime, body)
    return JSONResponse(await detokenize(runtime, body), headers=checked_body.headers())


@router.get(
    "/tokenizer_info",
    operation_id="get_tokenizer_info",
    response_model=None,
    responses=answers(TokenizerInfo),
)
async def tokenizer_info(runtime: StartedRuntime) -> dict[str, Any]:
    """The tokenizer's configuration and the chat template."""
    return runtime.renderer.tokenizer_config()
