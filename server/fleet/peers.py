"""The method in force, for a replica that starts, or that missed a switch.

Before it is ready, a server asks some of its peers, and reads the state file, if it has one. It
takes the method of the highest fleet generation. Later it asks one peer at a time, now and then:
what one replica knows reaches all others in a number of rounds that grows with the logarithm of
their number (Demers et al., "Epidemic Algorithms for Replicated Database Maintenance", 1987,
section 1.3, pull).
"""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import httpx
import structlog
from pydantic import TypeAdapter, ValidationError

from engine_adapter.errors import EngineError
from server.control.refusals import REFUSALS
from server.fleet.addresses import Address, resolve
from server.fleet.http_replica import HttpReplica, http_replicas
from server.fleet.member import Member
from server.fleet.replica import ReplicaRefused, ReplicaState, ReplicaUnreachable

ASKED_AT_START = 16
"""How many peers a server asks before it is ready: their number costs the fleet, not the answer."""

PEER_ANSWER_S = 5.0
"""How long a server waits for the state of a peer, in seconds; for its name's addresses too."""

_STATE = TypeAdapter(ReplicaState)

log = structlog.get_logger(__name__)


def read_state(path: str) -> ReplicaState | None:
    """The state in a file that `specgate switch --write-state` wrote; `None` without a file.

    Raises `ValueError` for a file with anything else, `OSError` for one that cannot be read.
    """
    try:
        return _STATE.validate_json(Path(path).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise ValueError(
            f"{path} does not have the state of a fleet: {error.errors()[0]['msg']}"
        ) from None


def state_json(state: ReplicaState) -> bytes:
    """The content of a state file."""
    return _STATE.dump_json(state, indent=2) + b"\n"


class Peers:
    """The sources of the method in force.

    Args:
        client: closed by `close`.
        urls: of peers; a name stands for all its addresses. The server itself may be among them.
        state_file: a file that `read_state` reads; it may be replaced at any time.
        poll_s: seconds between two questions; 0 asks only at the start.
    """

    def __init__(
        self,
        member: Member,
        client: httpx.AsyncClient,
        urls: Sequence[str],
        state_file: str | None,
        poll_s: float,
    ) -> None:
        self._member = member
        self._client = client
        self._urls = urls
        self._state_file = state_file
        self._poll_s = poll_s
        self._refused: ReplicaState | None = None
        self._following: asyncio.Task[None] | None = None
        self._lookup: asyncio.Task[list[Address]] | None = None

    async def join(self) -> None:
        """Takes the method in force, before the server is ready, and follows it from then on.

        Never raises for a source.
        """
        found = await self._ask(ASKED_AT_START)
        if not found:
            log.warning("fleet_not_found", peers=list(self._urls), state_file=self._state_file)
        await self._take(found)
        if self._poll_s:
            self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Ends the questions to peers."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        if self._lookup is not None:
            self._lookup.cancel()
        await self._client.aclose()

    async def _follow(self) -> None:
        while True:
            # Replicas that were started together do not ask together.
            await asyncio.sleep(self._poll_s * random.uniform(0.5, 1.5))
            try:
                await self._take(await self._ask(1))
            except Exception as error:
                log.error("fleet_follow_failed", exc_info=error)

    async def _ask(self, most: int) -> list[ReplicaState]:
        """What at most so many peers and the file say; those that do not answer are left out."""
        states = []
        try:
            addresses = await self._addresses()
            chosen = random.sample(addresses, min(most, len(addresses)))
            replicas = http_replicas(self._client, chosen)
            answers = await asyncio.gather(*map(self._state_of, replicas))
            states = [state for state in answers if state is not None]
        except (OSError, ValueError) as error:
            # A name with a part that is too long has no encoding, which is a ValueError.
            log.debug("fleet_name_failed", error=str(error))
        try:
            kept = None if self._state_file is None else read_state(self._state_file)
        except (OSError, ValueError) as error:
            log.warning("fleet_state_file_failed", error=str(error))
        else:
            states += [] if kept is None else [kept]
        return states

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

    async def _state_of(self, replica: HttpReplica) -> ReplicaState | None:
        try:
            async with asyncio.timeout(PEER_ANSWER_S):
                return await replica.state()
        except (ReplicaRefused, ReplicaUnreachable, TimeoutError) as error:
            log.debug("fleet_peer_failed", peer=replica.name, error=str(error))
            return None

    async def _take(self, found: Sequence[ReplicaState]) -> None:
        newest = max(found, key=lambda state: state.fleet_generation, default=None)
        if newest is None:
            return
        try:
            if await self._member.adopt(newest):
                log.info(
                    "fleet_method_taken",
                    generation=newest.fleet_generation,
                    spec_method=newest.active.spec_method,
                )
        except (*REFUSALS, EngineError) as error:
            # It is tried again at every question; the log has it once.
            if newest != self._refused:
                log.error(
                    "fleet_method_refused",
                    generation=newest.fleet_generation,
                    spec_method=newest.active.spec_method,
                    error=str(error),
                )
            self._refused = newest


def _look_at(lookup: "asyncio.Task[list[Address]]") -> None:
    """A failure of a lookup that nobody waits for any more is no warning of asyncio's."""
    if not lookup.cancelled():
        lookup.exception()
