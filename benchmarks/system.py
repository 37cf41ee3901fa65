"""The measured system, a server or an engine, and what starts it."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol

from benchmarks.timeline import Decoding, Timeline, decoding
from benchmarks.workload import Request
from engine_adapter.proposers.contract import ProposerSpec

TRIES = 3


class System(Protocol):
    """A running server or engine."""

    @property
    def name(self) -> str:
        """Its name in the results."""
        ...

    async def send_burst(self, requests: Sequence[Request]) -> list[Timeline]:
        """Sends the requests at the same time and returns their timelines."""
        ...


class SystemLauncher(Protocol):
    """Starts systems; a system ends when its context is left."""

    def stock(self, target: str, spec: ProposerSpec | None) -> AbstractAsyncContextManager[System]:
        """Stock vLLM with one proposer, or without speculation; its name is `stock`."""
        ...

    def specgate(
        self, name: str, target: str, specs: Sequence[ProposerSpec]
    ) -> AbstractAsyncContextManager[System]:
        """Specgate with these proposers; a request that names none of them decodes plainly."""
        ...


async def measure(system: System, requests: Sequence[Request]) -> Decoding:
    """How fast the system decodes a burst.

    A burst whose streams did not decode at the same time is sent again. Raises `ValueError` if
    this happens `TRIES` times.
    """
    for _ in range(TRIES - 1):
        with suppress(ValueError):
            return decoding(await system.send_burst(requests))
    return decoding(await system.send_burst(requests))
