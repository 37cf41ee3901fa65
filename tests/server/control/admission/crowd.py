"""Requests that want slots, for tests of who gets the next one."""

import asyncio

from server.control.admission.request_cost import RequestCost
from server.control.admission.slots import SlotLimits, Slots, Ticket


def cost(sequences: int = 1, **more: object) -> RequestCost:
    fields: dict[str, object] = {
        "key": None,
        "slots": 1,
        "prompt_costs": [1] * sequences,
        "prompt_tokens": 1,
    }
    return RequestCost(**{**fields, **more})  # type: ignore[arg-type]


class Crowd:
    """Requests that want slots; `started` lists a name for each sequence that has started.

    With a reserve, several keys share the slots, and the engine runs `rows` of them. Requests in
    the background may have `background` rows.
    """

    def __init__(
        self,
        total: int = 4,
        of_request: int = 2,
        prompt_tokens: int = 100,
        rows: int = 0,
        reserved: int = 0,
        background: int = 1,
    ) -> None:
        limits = SlotLimits(total, rows or total, reserved, of_request, prompt_tokens, background)
        self.slots = Slots(limits, is_shared=lambda: self.is_shared)
        self.is_shared = True
        self.started: list[str] = []
        self.tickets: dict[str, Ticket] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def come(self, name: str, sequences: int = 1, **more: object) -> Ticket:
        """A request that starts all its sequences as it can; none ends by itself."""
        ticket = self.tickets[name] = self.slots.ticket(cost(sequences, **more))

        async def run() -> None:
            for _ in range(sequences):
                await ticket.start()
                self.started.append(name)

        self._tasks.append(asyncio.create_task(run()))
        await settle()
        return ticket

    async def end(self, name: str, index: int = 0) -> None:
        self.tickets[name].ended(index)
        await settle()

    async def leave(self, *names: str) -> None:
        for name in names:
            self.tickets[name].leave()
        await settle()
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
