"""Which requests still wait for their body."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Arrivals:
    """Keeps the tasks of requests whose body has not arrived in full.

    Args:
        reading: the tasks, also in `AppState.reading`.
    """

    def __init__(self, app: ASGIApp, reading: "set[asyncio.Task[None]]") -> None:
        self._app = app
        self._reading = reading

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        if scope["type"] != "http" or task is None:
            await self._app(scope, receive, send)
            return
        self._reading.add(task)

        async def watched() -> Message:
            message = await receive()
            if not message.get("more_body", False):
                self._reading.discard(task)
            return message

        try:
            await self._app(scope, watched, send)
        finally:
            self._reading.discard(task)
