"""The live requests: the slot of each in arrays, its class, and what each proposer has read."""

from collections.abc import Iterable, Sequence

import numpy as np

from engine_adapter.policies.acceptance import Floats, Ints
from engine_adapter.policies.contract import RequestClass, RowView


class LiveRequests:
    """The slots of requests; a slot is used again when its request has ended.

    Attributes:
        kinds: the class of the request in each slot, [S].
    """

    def __init__(self) -> None:
        self.kinds = np.zeros(0, np.intp)
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        # Request id -> its tokens; and of them, how many each proposer has read, by index.
        self._lengths: dict[str, int] = {}
        self._reads: dict[str, dict[int, int]] = {}

    @property
    def size(self) -> int:
        """Slots in all, S."""
        return len(self.kinds)

    def forget_proposer(self, proposer: int) -> None:
        """The proposer has read nothing."""
        for reads in self._reads.values():
            reads.pop(proposer, None)

    def admit(self, request_id: str, request_class: RequestClass) -> int:
        """A request begins; returns its slot."""
        if not self._free:
            size, num_new = self.size, max(16, self.size)
            self._free = list(range(size + num_new - 1, size - 1, -1))
            self.kinds = np.concatenate((self.kinds, np.zeros(num_new, np.intp)))
        slot = self._slots[request_id] = self._free.pop()
        self.kinds[slot] = request_class
        self._reads[request_id] = {}
        return slot

    def free(self, request_id: str) -> None:
        """A request ended."""
        slot = self._slots.pop(request_id, None)
        if slot is not None:
            self._free.append(slot)
            del self._reads[request_id]
            self._lengths.pop(request_id, None)

    def slot(self, request_id: str) -> int | None:
        """The slot of a live request."""
        return self._slots.get(request_id)

    def slots(self, rows: Sequence[RowView]) -> Ints:
        """The slots of rows, [R]."""
        slots = self._slots
        return np.array([slots[row.request_id] for row in rows], np.intp)

    def note_lengths(self, rows: Sequence[RowView]) -> None:
        """Notes the tokens of each row of a step."""
        self._lengths.update([(row.request_id, row.num_tokens) for row in rows])

    def mark_read(self, readers: Iterable[tuple[str, int]], num_proposers: int) -> Floats:
        """Proposers read requests up to the noted length.

        Args:
            readers: pairs of a request and the proposer that reads it.
            num_proposers: J.

        Returns:
            The tokens that each proposer has to read for that, [J].
        """
        tokens = [0] * num_proposers
        for request_id, proposer in readers:
            reads, length = self._reads[request_id], self._lengths.get(request_id, 0)
            tokens[proposer] += length - reads.get(proposer, 0)
            reads[proposer] = length
        return np.array(tokens, np.float64)

    def lags(self, rows: Sequence[RowView], proposer: int) -> Floats:
        """The tokens of each row that the proposer has not read, [R]."""
        reads = self._reads
        return np.array(
            [row.num_tokens - reads[row.request_id].get(proposer, 0) for row in rows], np.float64
        )

    def forget_reads(self, request_id: str) -> None:
        """No proposer has read the request any more: it was preempted, and its KV is gone."""
        self._reads[request_id].clear()
