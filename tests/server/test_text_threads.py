"""Work on long texts has few threads, and large texts are worked on one at a time."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest

from server.rendering import Renderer
from server.text_threads import LARGE_TEXT_CHARS, LONG_TEXT_CHARS, TextThreads, texts_of
from tests.server.gateway import eventually
from tests.server.tokenizer_kinds import tokenizer_of


class Work:
    """Work that ends when it is told to."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self._lock = threading.Lock()
        self.may_end = threading.Event()

    def __call__(self) -> None:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.may_end.wait(60)
        with self._lock:
            self.running -= 1


def start(
    threads: TextThreads, work: Callable[[], None], chars: int, key: str
) -> asyncio.Task[None]:
    """Work for a key, in a task of its own as a request has."""
    with texts_of(key):
        return asyncio.create_task(threads.run(work, chars))


@pytest.mark.parametrize("chars", [LONG_TEXT_CHARS + 1, LARGE_TEXT_CHARS + 1])
async def test_the_threads_serve_the_keys_in_turns(chars: int) -> None:
    threads, first = TextThreads(), Work()
    order: list[str] = []
    tasks = [start(threads, first, chars, "a"), start(threads, first, chars, "c")]
    await eventually(lambda: first.running == (2 if chars <= LARGE_TEXT_CHARS else 1))
    for key in ("a", "a", "a", "b"):
        tasks.append(start(threads, partial(order.append, key), chars, key))
        await asyncio.sleep(0)
    first.may_end.set()
    await asyncio.gather(*tasks)
    assert order[0] == "b"
    assert order[1:] == ["a", "a", "a"]


async def test_a_key_whose_clients_leave_has_one_long_text_worked_on_at_a_time() -> None:
    threads, work = TextThreads(), Work()
    chars = LONG_TEXT_CHARS + 1
    left = start(threads, work, chars, "a")
    await eventually(lambda: work.running == 1)
    waiting = start(threads, work, chars, "a")
    await asyncio.sleep(0)
    for task in (left, waiting):
        task.cancel()
    await asyncio.wait([left, waiting])
    task = start(threads, work, chars, "a")
    # The other thread is free for another key, and its answer shows that the loop had its turns.
    await start(threads, lambda: None, chars, "b")
    assert work.running == work.most == 1
    work.may_end.set()
    await task
    assert work.most == 1


@pytest.mark.parametrize(("chars", "most"), [(LONG_TEXT_CHARS + 1, 2), (LARGE_TEXT_CHARS + 1, 1)])
async def test_no_more_texts_are_worked_on_at_a_time_even_if_clients_leave(
    chars: int, most: int
) -> None:
    threads, work = TextThreads(), Work()
    tasks = [start(threads, work, chars, f"key {i}") for i in range(8)]
    await eventually(lambda: work.running == most)
    for task in tasks[:4]:
        task.cancel()
    await asyncio.wait(tasks[:4])
    others = [start(threads, work, chars, f"key {i}") for i in range(4)]
    # Other sizes have their own threads.
    assert await threads.run(lambda: "short", 1) == "short"
    other = LONG_TEXT_CHARS + 1 if chars > LARGE_TEXT_CHARS else LARGE_TEXT_CHARS + 1
    assert await threads.run(lambda: "other", other) == "other"
    assert work.running == work.most == most
    work.may_end.set()
    await asyncio.gather(*tasks[4:], *others)
    assert work.most == most


async def test_an_error_of_the_work_is_the_callers() -> None:
    def fail() -> None:
        raise ValueError("no")

    for chars in (1, LONG_TEXT_CHARS + 1, LARGE_TEXT_CHARS + 1):
        with pytest.raises(ValueError, match="no"):
            await TextThreads().run(fail, chars)


async def test_large_texts_have_the_ids_of_the_tokenizer_itself() -> None:
    tokenizer = tokenizer_of("byte-level")
    text = "some words, and 漢字 🙂\n" * 8000
    assert len(text) > LARGE_TEXT_CHARS
    assert await Renderer(tokenizer).encode(text) == tuple(tokenizer.encode(text))
