"""A command's connections to its replicas."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from server.fleet.http_fleet import PoolPerReplica, fleet_client
from tests.server.gateway import eventually


class Counted:
    """A server that counts its connections."""

    def __init__(self) -> None:
        self.url = ""
        self.begun = self.ended = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.begun += 1
        while await reader.readline():
            while (await reader.readline()).strip():
                pass
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()
        self.ended += 1


@asynccontextmanager
async def counted() -> AsyncIterator[Counted]:
    made = Counted()
    server = await asyncio.start_server(made.answer, "127.0.0.1", 0)
    async with server:
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield made


async def test_each_replica_has_a_pool_whose_connection_serves_the_next_call_too() -> None:
    transport = PoolPerReplica()
    async with counted() as one, counted() as other:
        async with fleet_client(None, transport) as client:
            for url in (one.url, other.url, one.url, other.url):
                assert (await client.get(url)).json() == {}
            assert (one.begun, other.begun) == (1, 1)
            assert len(transport._pools) == 2
        await eventually(lambda: (one.ended, other.ended) == (1, 1))
