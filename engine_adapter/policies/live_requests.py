"""The live requests in arrays: the slot of each, its class, and what each proposer has read."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

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
        self._lengths: dict[str, int] = {}
        self._read_upto = np.zeros((0, 0))

    @property
    def size(self) -> int:
        """Slots in all, S."""
        return len(self.kinds)

    def add_proposer(self) -> None:
        """One more proposer, which has read nothing."""
        self._read_upto = _grown(self._read_upto, self.size, self._read_upto.shape[1] + 1)

    def forget_proposer(self, proposer: int) -> None:
        """The proposer has read nothing."""
        self._read_upto[:, proposer] = 0

    def admit(self, request_id: str, request_class: RequestClass) -> int:
        """A request begins; returns its slot."""
        if not self._free:
            size, num_new = self.size, max(16, self.size)
            self._free = list(range(size + num_new - 1, size - 1, -1))
            self.kinds = np.concatenate((self.kinds, np.zeros(num_new, np.intp)))
            self._read_upto = _grown(self._read_upto, size + num_new, self._read_upto.shape[1])
        slot = self._slots[request_id] = self._free.pop()
        self.kinds[slot] = request_class
        self._read_upto[slot] = 0
        return slot

    def free(self, request_id: str) -> None:
        """A request ended."""
        slot = self._slots.pop(request_id, None)
        if slot is not None:
            self._free.append(slot)
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

    def mark_read(self, request_ids: Sequence[str], proposers: Ints) -> Floats:
        """Each proposer reads its row up to the noted length; returns the lags removed, [N]."""
        entries = [self._slots[request_id] for request_id in request_ids], proposers
        lengths = [self._lengths[request_id] for request_id in request_ids]
        lag: Floats = lengths - self._read_upto[entries]
        self._read_upto[entries] = lengths
        return lag

    def lags(self, rows: Sequence[RowView], slots: Ints, proposers: Ints) -> Floats:
        """The tokens of each row that each proposer has not read, [R, J]."""
        tokens = np.array([float(row.num_tokens) for row in rows])
        lags: Floats = tokens[:, None] - self._read_upto[slots[:, None], proposers]
        return lags

    def forget_reads(self, request_id: str) -> None:
        """No proposer has read the request any more: it was preempted, and its KV is gone."""
        self._read_upto[self._slots[request_id]] = 0


def _grown(array: npt.NDArray[np.float64], rows: int, columns: int) -> npt.NDArray[np.float64]:
    grown = np.zeros((rows, columns))
    grown[: array.shape[0], : array.shape[1]] = array
    return grown
