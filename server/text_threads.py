"""Threads for work on texts: few, so that neither their memory nor their CPU time adds up."""

import asyncio
import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar
from weakref import WeakValueDictionary

Result = TypeVar("Result")

LONG_TEXT_CHARS = 8_192
"""The work on a longer text is done in a thread: it would delay every stream by milliseconds."""

LARGE_TEXT_CHARS = 131_072
"""Larger texts are worked on one at a time, apart from the others.

A tokenizer needs some 200 bytes for a character, and a second for millions of them.
"""

_key: ContextVar[str | None] = ContextVar("key_of_texts", default=None)


@contextmanager
def texts_of(key: str | None) -> Iterator[None]:
    """The work on texts in the block is for the key of this name; `None` for requests without."""
    token = _key.set(key)
    try:
        yield
    finally:
        _key.reset(token)


class TextThreads:
    """Two threads for long texts, and one for large texts, which serve the keys in turns.

    A thread that has started its work ends it, even if the client is gone: so clients cannot have
    more work done at a time than there are threads.
    """

    def __init__(self) -> None:
        self._long = _Threads(2, "long-texts")
        self._large = _Threads(1, "large-texts")

    async def run(self, work: Callable[[], Result], chars: int) -> Result:
        """What `work` returns for a text of `chars` characters, or for that many tokens."""
        if chars <= LONG_TEXT_CHARS:
            return work()
        if chars <= LARGE_TEXT_CHARS:
            return await self._long.run(work)
        return await self._large.run(lambda: _with_memory_back(work))


class _Threads:
    """Threads in whose queue each key has one piece of work at most.

    So the queue's order is that of turns. The other work of a key waits for the key's own lock,
    until the thread, not only its client, has ended the piece before.
    """

    def __init__(self, count: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(count, name)
        self._turns: WeakValueDictionary[str | None, asyncio.Lock] = WeakValueDictionary()

    async def run(self, work: Callable[[], Result]) -> Result:
        turn = self._turns.setdefault(_key.get(), asyncio.Lock())
        await turn.acquire()
        loop = asyncio.get_running_loop()

        def end_turn(_: Any) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(turn.release)

        job = self._executor.submit(work)
        job.add_done_callback(end_turn)
        return await asyncio.wrap_future(job)


def release_memory() -> None:
    """Gives free memory back to the system: glibc keeps most of what threads have freed."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def _with_memory_back(work: Callable[[], Result]) -> Result:
    try:
        return work()
    finally:
        release_memory()
