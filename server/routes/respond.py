"""How a prepared request is admitted and answered over HTTP: one body, or a stream of events."""

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from server.errors import Stopping
from server.http.event_stream import EventStream, until_disconnect
from server.openai.response import Answer
from server.state import State


async def respond(request: Request, state: State, answer: Answer) -> Response:
    """The response; a client that goes away aborts the generation. Raises `ApiError`."""
    await _admit(request, state, answer)
    headers = answer.job.headers()
    if answer.streamed:
        keepalive_s = state.settings.keepalive_s
        return EventStream(
            answer.events(), keepalive_s=keepalive_s, headers=headers, on_end=answer.close
        )
    try:
        body = await until_disconnect(request.receive, answer.whole())
    finally:
        answer.close()
    return JSONResponse(body, headers=headers)


async def _admit(request: Request, state: State, answer: Answer) -> None:
    """Admits a request, once no drain holds it; a client that goes away is forgotten."""
    gate = state.switcher.gate
    if not gate.holds:
        answer.admit()
        return
    # What is wrong with it is said now, not after the wait.
    answer.check_choice()
    with gate.place() as place:
        while not place.reached:
            await until_disconnect(request.receive, place.wait())
        if state.draining:
            raise Stopping
        answer.admit()
