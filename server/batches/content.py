"""The response with the content of a file."""

from contextlib import ExitStack
from typing import BinaryIO

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.batches.files import FileStore, FilesUnavailable, StoredFile
from server.errors import ClientDisconnected
from server.http.event_stream import until_disconnect

PIECE_BYTES = 256 * 2**10


class Bytes(Response):
    """A response of any bytes."""

    media_type = "application/octet-stream"


class FileContent(Bytes):
    """Sends the content in pieces, each when the client has read the one before.

    It is opened first, so that a deletion does not cut it short.
    """

    def __init__(self, store: FileStore, file: StoredFile) -> None:
        # Whatever a client has uploaded, a browser must not take it for a page of this server.
        headers = {"content-length": str(file.num_bytes), "content-disposition": "attachment"}
        super().__init__(headers=headers)
        self._store = store
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises `ConcurrencyLimit` or `FilesUnavailable` before the first byte."""
        store, file = self._store, self._file
        path = store.disk.folder.content(file.id)
        with ExitStack() as stack:
            stack.enter_context(store.transfer(file.owner))
            try:
                content = await store.disk.open(lambda: path.open("rb"))
            except OSError as error:
                raise FilesUnavailable(error) from None
            stack.enter_context(content)
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            try:
                await until_disconnect(receive, self._send_pieces(content, send))
            except ClientDisconnected:
                return  # The answer has begun, so its status is sent already.
            # After it the server says that the client is gone, as after each answer.
            await send({"type": "http.response.body", "body": b""})

    async def _send_pieces(self, content: BinaryIO, send: Send) -> None:
        while piece := await self._store.disk.run(lambda: content.read(PIECE_BYTES)):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
