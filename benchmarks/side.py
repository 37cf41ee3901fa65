"""What is measured: anything that answers a wave of requests, and what starts it."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol

from benchmarks.timeline import Decoding, Timeline, decoding
from benchmarks.workload import Request
from engine_adapter.proposers.contract import ProposerSpec

TRIES = 3


class Side(Protocol):
    """A server or an engine that runs."""

    @property
    def name(self) -> str:
        """What the results call it."""
        ...

    async def wave(self, requests: Sequence[Request]) -> list[Timeline]:
        """Sends the requests at once and returns their timelines."""
        ...


class Host(Protocol):
    """Starts sides; leaving their contexts ends them."""

    def stock(self, target: str, spec: ProposerSpec | None) -> AbstractAsyncContextManager[Side]:
        """Stock vLLM with one proposer, or without speculation; it is called `stock`."""
        ...

    def specgate(
        self, name: str, target: str, specs: Sequence[ProposerSpec]
    ) -> AbstractAsyncContextManager[Side]:
        """Specgate with these proposers; nobody drafts for a request that names none of them."""
        ...


async def measure(side: Side, requests: Sequence[Request]) -> Decoding:
    """How fast `side` decodes a wave.

    A wave whose streams did not run together is sent again. Raises `ValueError` if none of
    `TRIES` did.
    """
    for _ in range(TRIES - 1):
        with suppress(ValueError):
            return decoding(await side.wave(requests))
    return decoding(await side.wave(requests))
