"""What the peers of a server, and its state file, know of the fleet's state."""

import asyncio
import random
from collections.abc import Sequence

import httpx
import structlog

from server.fleet.addresses import Address, resolve
from server.fleet.desired import DesiredState, read_state
from server.fleet.http_fleet import HttpFleet, SpecMethodAnswer

PEER_ANSWER_S = 5.0
"""How long a server waits for the state of a peer, in seconds; for its name's addresses too."""

log = structlog.get_logger(__name__)


class Peers:
    """Other replicas, and a file.

    Args:
        client: closed by `close`.
        urls: of peers; a name stands for all its addresses. The server itself may be among them.
        state_file: a file that `read_state` reads; it may be replaced at any time.
    """

    def __init__(
        self, client: httpx.AsyncClient, urls: Sequence[str], state_file: str | None
    ) -> None:
        self._client = client
        self._urls = urls
        self._state_file = state_file
        self._lookup: asyncio.Task[list[Address]] | None = None

    async def ask(self, max_peers: int) -> list[DesiredState | None]:
        """What at most so many peers and the file say; see `follower.Ask`."""
        states: list[DesiredState | None] = []
        try:
            addresses = await self._addresses()
            sample = random.sample(addresses, min(max_peers, len(addresses)))
            answers = await HttpFleet(self._client, sample).spec_methods(PEER_ANSWER_S)
        except (OSError, ValueError) as error:
            # A name with a part that is too long has no encoding, which is a ValueError.
            log.debug("fleet_name_failed", error=str(error))
        else:
            states = [
                answer.fleet.desired
                for answer in answers.values()
                if isinstance(answer, SpecMethodAnswer)
            ]
        try:
            in_file = None if self._state_file is None else read_state(self._state_file)
        except (OSError, ValueError) as error:
            log.warning("fleet_state_file_failed", error=str(error))
        else:
            states += [] if in_file is None else [in_file]
        return states

    async def close(self) -> None:
        """Ends a lookup that runs, and the connections."""
        if self._lookup is not None:
            self._lookup.cancel()
        await self._client.aclose()

    async def _addresses(self) -> list[Address]:
        """The peers' addresses. Raises what `resolve` raises, and `TimeoutError`.

        Names are looked up by threads. One lookup runs at a time, so that a resolver that hangs
        keeps few of them.
        """
        if self._lookup is None or self._lookup.done():
            self._lookup = asyncio.create_task(resolve(self._urls))
            self._lookup.add_done_callback(_look_at)
        async with asyncio.timeout(PEER_ANSWER_S):
            return await asyncio.shield(self._lookup)


def _look_at(lookup: "asyncio.Task[list[Address]]") -> None:
    """A failure of a lookup that nobody waits for any more is no warning of asyncio's."""
    if not lookup.cancelled():
        lookup.exception()
