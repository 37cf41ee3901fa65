"""Deployments for tests: a replica whose faults can be chosen. Needs Ray."""

import os
from typing import Any

from ray import serve

from server.ray_serve.deployment import Specgate


@serve.deployment(
    name="specgate",
    max_ongoing_requests=10_000,
    graceful_shutdown_timeout_s=120,
    ray_actor_options={"num_cpus": 0.5},
)
class Fallible(Specgate.func_or_class):  # type: ignore[name-defined, misc]
    """A replica that a handle can tell to fail."""

    async def __init__(self, args: dict[str, Any]) -> None:  # type: ignore[misc]
        await super().__init__(args)

    async def process(self) -> tuple[str, int]:
        """The replica's name and the id of its process."""
        return self._fleet.name, os.getpid()

    async def active(self) -> tuple[str, str, int]:
        """The replica's name, its method and its fleet generation."""
        active = self._application.state.specgate.runtime.switcher.active
        return self._fleet.name, active.name, active.fleet.generation

    async def in_flight(self) -> int:
        """How many requests are admitted and unfinished."""
        return len(self._application.state.specgate.runtime.switcher.in_flight)

    async def unload(self, proposer: str, at: str) -> None:
        """Unloads a proposer at the replica `at` only."""
        if self._fleet.name == at:
            await self._application.state.specgate.runtime.engine.unload_proposer(proposer)

    async def die_at(self, method: str, at: str) -> None:
        """Lets the process of the replica `at` end when the fleet calls `method`."""
        if self._fleet.name == at:
            setattr(self._fleet.member, method, _die)


def app(args: dict[str, Any]) -> serve.Application:
    """The application of a Serve config file."""
    return Fallible.bind(args)


def _die(*_: Any) -> None:
    os._exit(1)
