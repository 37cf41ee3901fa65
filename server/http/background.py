"""Requests that the server sends to itself in the background: the lines of batches."""

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from server.http.auth import authorize
from server.http.exchange import exchange_of
from server.text_threads import texts_of


class Background:
    """Answers requests of the server's own as those of an owner's key, behind all others.

    Args:
        owner: see `server.http.auth.key_owner`.
    """

    def __init__(self, app: ASGIApp, owner: str) -> None:
        self._app = app
        self._owner = owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Marks the request and passes it on.

        It has a task of its own: a drain that has waited long enough cancels the request's task,
        which must not be that of the batch.
        """
        exchange_of(scope).is_background = True
        authorize(scope, self._owner)
        with texts_of(self._owner or None):
            answering = asyncio.ensure_future(self._app(scope, receive, send))
        try:
            await asyncio.wait((answering,))
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
        answering.result()
