"""How an admitted request is answered over HTTP: one body, or a stream of events."""

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from server.dependencies import State
from server.serving.answer import Answer
from server.sse import EventStream, until_disconnect


async def respond(request: Request, state: State, answer: Answer) -> Response:
    """The response; a client that goes away aborts the generation. Raises `ApiError`."""
    headers = answer.job.headers()
    if answer.streamed:
        keepalive_s = state.settings.keepalive_s
        return EventStream(answer.events(), keepalive_s=keepalive_s, headers=headers)
    body = await until_disconnect(request.receive, answer.whole())
    return JSONResponse(body, headers=headers)
