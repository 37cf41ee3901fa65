"""A bare ASGI app on uvicorn that sends recorded streams: the least that a gateway can cost.

It finds the recording by the request's body, and sends an event when the engine's clock steps, as
the gateway does on a replaying engine.

Usage: python -m benchmarks.gateway.bare_app RECORDINGS STEP_MS --port PORT
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from benchmarks.gateway.recording import RecordedStream, read
from engine_adapter.fake.replay import StepClock

BACKLOG = 2048
HEAD = [(b"cache-control", b"no-cache"), (b"content-type", b"text/event-stream; charset=utf-8")]


def bare_app(recordings: Sequence[RecordedStream], step_s: float) -> ASGIApp:
    """The app; a body that was not recorded is answered with 404."""
    by_body = {recording.body: recording.steps() for recording in recordings}
    clock = StepClock(step_s)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", scope["method"] == "POST"
        while more:
            part = await receive()
            body += part["body"]
            more = part["more_body"]
        steps = by_body.get(body)
        status = 200 if scope["path"] == "/ready" or steps else 404
        await send({"type": "http.response.start", "status": status, "headers": HEAD})
        step = clock.next_step()
        for events in steps or ():
            await clock.reach(step)
            step += 1
            for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


def main() -> None:
    """Serves until a signal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("recordings", type=Path)
    parser.add_argument("step_ms", type=float)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    app = bare_app(read(options.recordings), options.step_ms / 1e3)
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=options.port,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        backlog=BACKLOG,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
    )


if __name__ == "__main__":
    main()
