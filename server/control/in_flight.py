"""Which requests are between admission and end, and when there are none."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class _Admission:
    """One request, however many choices it has."""

    proposer: str
    pinned: bool


class InFlight:
    """The admitted, unfinished requests. Lives on the event loop."""

    def __init__(self) -> None:
        self._admissions: set[_Admission] = set()
        self._emptied: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._admissions)

    @property
    def by_proposer(self) -> Mapping[str, int]:
        """How many there are, by what drafts for them now."""
        return Counter(admission.proposer for admission in self._admissions)

    @contextmanager
    def admitted(self, name: str, *, pinned: bool = False) -> Iterator[None]:
        """Counts a request, under the proposer `name`, while the block runs."""
        admission = _Admission(name, pinned)
        self._admissions.add(admission)
        try:
            yield
        finally:
            self._admissions.discard(admission)
            if self._emptied is not None and not self._admissions and not self._emptied.done():
                self._emptied.set_result(None)

    def move_unpinned(self, name: str) -> None:
        """Counts every request that is not pinned under the proposer `name` from now on."""
        for admission in self._admissions:
            if not admission.pinned:
                admission.proposer = name

    async def emptied(self) -> None:
        """Returns when no request is left. One waiter at a time."""
        if not self._admissions:
            return
        self._emptied = asyncio.get_running_loop().create_future()
        try:
            await self._emptied
        finally:
            self._emptied = None
