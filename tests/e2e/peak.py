"""The memory of a process while something runs."""

import threading

import psutil


class Peak:
    """The most memory of a process while the block runs, in bytes."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.most = self.before = self._process.memory_info().rss
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def now(self) -> int:
        """The memory at this moment, in bytes."""
        return int(self._process.memory_info().rss)

    def _watch(self) -> None:
        while not self._end.wait(0.01):
            self.most = max(self.most, self.now())
