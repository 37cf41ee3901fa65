"""The two files that a batch writes: its answers with status 200, and its errors."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from server.batches.lines import (
    BadLine,
    Entry,
    LineRules,
    Output,
    Request,
    bad_line_entry,
    read_input,
    unanswered_entry,
)


@dataclass(frozen=True, slots=True)
class EntryReceipt:
    """An entry that was written.

    Attributes:
        num_bytes: 0 if it was not, because the line has one.
        completed: its line was answered with status 200.
    """

    num_bytes: int
    completed: bool


class Results:
    """The two files, open for writing. Its methods wait for the disk; call them in a thread.

    A line has one entry, in one of the files, whatever is called at the same time.

    Attributes:
        answers, errors: the files.
        counted_bytes: those that were counted for the owner.

    Raises:
        BatchError: one of the files cannot be used.
    """

    def __init__(self, answers: Path, errors: Path) -> None:
        self._paths = (answers, errors)
        self.answers = Output(answers)
        try:
            self.errors = Output(errors)
        except BaseException:
            self.answers.close()
            raise
        self.counted_bytes = 0
        self._lock = threading.Lock()
        self._is_open = True

    @property
    def sizes(self) -> tuple[int, int]:
        """The bytes of both files."""
        return self.answers.num_bytes, self.errors.num_bytes

    def has(self, item: Request | BadLine) -> bool:
        """Whether a line has its entry."""
        return self.answers.done.has(item) or self.errors.done.has(item)

    def remaining(self, path: Path, rules: LineRules) -> Iterator[Request | BadLine]:
        """The lines of an input without an entry. Raises `BatchError`."""
        return (item for item in read_input(path, rules) if not self.has(item))

    def write(self, item: Request | BadLine, make_entry: Callable[[], Entry]) -> EntryReceipt:
        """Writes the entry of a line that has none. Raises `BatchError`."""
        entry = make_entry()
        with self._lock:
            if not self._is_open or self.has(item):
                return EntryReceipt(0, completed=False)
            file = self._file_of(entry)
            return EntryReceipt(file.write(entry), completed=file is self.answers)

    def write_rest(self, path: Path, rules: LineRules, code: str, message: str) -> int:
        """Writes an error for each line without an entry, and returns the bytes of all.

        Raises `BatchError`.
        """
        num_bytes = 0
        for item in self.remaining(path, rules):
            make_entry = partial(_unanswered, item, code, message)
            num_bytes += self.write(item, make_entry).num_bytes
        return num_bytes

    def close(self) -> tuple[int, int]:
        """Ends the files, and returns their sizes. An empty one is removed."""
        with self._lock:
            self._is_open = False
            sizes = self.sizes
            self.answers.close()
            self.errors.close()
        for path, size in zip(self._paths, sizes, strict=True):
            if not size:
                path.unlink(missing_ok=True)
        return sizes

    def _file_of(self, entry: Entry) -> Output:
        response = entry["response"]
        succeeded = response is not None and response["status_code"] == 200
        return self.answers if succeeded else self.errors


def _unanswered(item: Request | BadLine, code: str, message: str) -> Entry:
    if isinstance(item, BadLine):
        return bad_line_entry(item)
    return unanswered_entry(item, code, message)
