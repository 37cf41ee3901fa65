"""The drafts of a model: on the device, with their number known on the CPU.

The target reads drafts on the device. So a step need not wait for them: the CPU knows how many
there are, and reads the tokens only where it needs them, when their copy has long arrived.
"""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from engine_adapter.proposers.staging import HostCopy, to_device


class DraftTable:
    """The drafts that a model made for R rows.

    Args:
        tokens: int64 [R, K], on the device; valid token ids, which do not change later.
        is_read: the CPU reads them, so their copy begins now; otherwise when it does read them.

    Attributes:
        tokens: see above.
    """

    def __init__(self, tokens: Any, *, is_read: bool = True) -> None:
        self.tokens = tokens
        self._copy = HostCopy(tokens) if is_read else None
        self._lists: list[list[int]] | None = None

    def rows(self) -> list["DraftRow"]:
        """The R rows, each with K drafts."""
        count, length = self.tokens.shape
        return [DraftRow(self, i, length) for i in range(count)]

    def numpy(self) -> npt.NDArray[np.int64]:
        """`tokens` on the CPU; waits until the device has made them."""
        if self._copy is None:
            self._copy = HostCopy(self.tokens)
        (copied,) = self._copy.arrays()
        return copied

    def lists(self) -> list[list[int]]:
        """`numpy` as lists."""
        if self._lists is None:
            self._lists = self.numpy().tolist()
        return self._lists


class DraftRow(Sequence[int]):
    """The first drafts of a row of a table. Its length is known; to read a token waits for it.

    Attributes:
        table: see above.
        row: its index there.
    """

    __slots__ = ("_length", "row", "table")

    def __init__(self, table: DraftTable, row: int, length: int) -> None:
        self.table, self.row, self._length = table, row, length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        return iter(self.table.lists()[self.row][: self._length])

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> "DraftRow | list[int]": ...

    def __getitem__(self, index: int | slice) -> "int | DraftRow | list[int]":
        """A token, or some; the first ones are a `DraftRow` again, and nothing waits."""
        if isinstance(index, slice) and not index.start and index.step is None:
            if index.stop is None or index.stop >= self._length:
                return self
            return DraftRow(self.table, self.row, len(range(*index.indices(self._length))))
        return self.table.lists()[self.row][: self._length][index]

    def __eq__(self, other: object) -> bool:
        """Whether another row, or a list, has the same tokens."""
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def numpy(self) -> npt.NDArray[np.int64]:
        """The tokens, int64 [length]; waits until the device has made them."""
        return self.table.numpy()[self.row, : self._length]


def on_device(drafts: Sequence[int], device: Any) -> Any:
    """The drafts of a row as a tensor on the device, int64 [n]: a model's are there already."""
    if type(drafts) is DraftRow:
        return drafts.table.tokens[drafts.row, : len(drafts)]
    return to_device(device, np.array(drafts, np.int64))[0]
