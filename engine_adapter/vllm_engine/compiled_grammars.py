"""The compiled grammars of a process: one store, bounded in bytes.

EngineCore compiles what constrains texts, the worker what guides drafts. With one rank they are one
process and share the store, so no step waits for a compilation. Equal grammars share one matcher,
which never advances: a sequence gets a copy. Copies share what their lexers learn while they read,
so a grammar grows as it is used, and its memory is free when it has left the store and the last
copy is gone.

Whether a grammar is still in the store is seen in its masks: a lexer keeps a limited number of
states. So ranks that draft for the same rows measure nothing, and drop the same grammars.
"""

import random
import sys
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from engine_adapter.seam.config import DEFAULT_GRAMMAR_BYTES
from engine_adapter.seam.counts import CompiledGrammars
from engine_adapter.vllm_engine import heap
from engine_adapter.vllm_engine.learned_memory import (
    LEARNING_BYTES,
    LONG_CALL_S,
    LearnedMemory,
    Sections,
)
from engine_adapter.vllm_engine.mask_allowance import Allowance

LEAST_BYTES = 64 << 10
"""What a grammar counts at least: Python's objects and the allocator's own data."""

UNMEASURED_BYTES_PER_CHARACTER = 600
"""What a grammar counts for each character of its text if nobody measures it: as a forced text."""

LEARNED_SHARE = 1 / 128
"""The share of the budget that is learned from one look at all grammars to the next."""

TRIM_BYTES = 16 << 20
"""Freed bytes after which memory is given back: the allocator keeps half of them as a rule."""

TRIM_DELAY_S = 1.0
"""How long the return waits for more to be freed, in seconds."""


class GrammarsFull(ValueError):
    """The grammars of live sequences leave no room for another one; later there may be some."""


def max_bytes_of_one(budget: int) -> int:
    """The most bytes that one compiled grammar may take, so that others can be live beside it."""
    return budget // 4


def too_large(size: int, budget: int) -> str | None:
    """Why a grammar of `size` bytes is refused; `None` if it is not."""
    limit = max_bytes_of_one(budget)
    if size <= limit:
        return None
    return (
        f"takes {_mib(size)} MiB of memory when it is compiled; the most is {_mib(limit)} MiB, a "
        "quarter of --max-compiled-grammar-bytes; simplify it."
    )


class CompiledGrammar:
    """A grammar that is compiled once. Its matcher never advances; sequences get copies.

    A spent `draft_allowance` is not renewed: drafts do without it until the grammar is forgotten.

    Attributes:
        grammar: its serialized text.
        matcher: llguidance's; `None` until it is compiled.
        uses: those that are live.
        compiled_bytes: what it takes without what its lexer learns.
        learned: that.
        has_learned_too_much: its sequences must end.
        freed: its size is appended when it is gone. The garbage collector may do that in any
            thread, whatever locks this one has, so it does no more.
    """

    def __init__(self, grammar: str, compiled_bytes: int, freed: deque[int]) -> None:
        self.grammar = grammar
        self.lock = threading.Lock()
        self.matcher: Any = None
        self.allowance = Allowance()
        self.draft_allowance = Allowance()
        self.uses: weakref.WeakSet[GrammarUse] = weakref.WeakSet()
        self.compiled_bytes = compiled_bytes
        self.learned = LearnedMemory()
        self.has_learned_too_much = False
        self.freed = freed

    def __del__(self) -> None:
        self.freed.append(0 if self.matcher is None else self.size)

    @property
    def size(self) -> int:
        """What it takes, in bytes."""
        return max(LEAST_BYTES, self.compiled_bytes) + self.learned.bytes


class GrammarUse:
    """A sequence's hold of a grammar. While it lives, the grammar's memory counts as in use."""

    __slots__ = ("__weakref__", "_store", "compiled")

    def __init__(self, store: "GrammarStore", compiled: CompiledGrammar) -> None:
        self._store = store
        self.compiled = compiled

    def copy(self) -> Any:
        """A matcher of its own, at the beginning of the text."""
        return self.compiled.matcher.deep_copy()

    def drop(self) -> None:
        """Lets the store forget the grammar: the next sequence compiles it again."""
        self._store.drop(self.compiled)

    @contextmanager
    def timed(self, spend: Callable[[float, float], None]) -> Iterator[list[object]]:
        """Around a call of a matcher: hands its CPU seconds to `spend`, and counts its memory.

        The second argument of `spend` is the CPU seconds in which the memory was read, if the call
        learns or is long, and is why it is read so often; else 0. In an engine with much memory a
        reading takes longer than a slow call, and an ordinary grammar is not to blame. The list
        takes what the call returns: objects that are still there when the memory is read, and are
        not the lexer's.
        """
        store, learned = self._store, self.compiled.learned
        weight = learned.weight_of_call(store.draw()) if store.measures else 0
        number = store.sections.begin()
        bytes_before, reading_s = _read_memory() if weight else (0, 0.0)
        returned: list[object] = []
        began = time.thread_time()
        try:
            yield returned
        finally:
            seconds = time.thread_time() - began
            allocated = 0
            if weight:
                bytes_after, more_reading_s = _read_memory()
                allocated = bytes_after - bytes_before - sum(map(sys.getsizeof, returned))
                reading_s += more_reading_s
            is_alone = store.sections.end(number)
            has_learned = allocated >= LEARNING_BYTES or seconds >= LONG_CALL_S
            spend(seconds, reading_s if has_learned else 0.0)
        if weight and is_alone:
            store.add_learned(learned.count(allocated, weight))
            return
        learned.note_time(seconds)
        if weight:
            learned.miss(weight)


def _read_memory() -> tuple[int, float]:
    """The bytes that are allocated, and the CPU seconds in which they were read."""
    began_ns = time.thread_time_ns()
    allocated = heap.allocated_bytes()
    return allocated, (time.thread_time_ns() - began_ns) / 1e9


class GrammarStore:
    """Compiled grammars, the least recently used first. Threads may call it at once.

    Attributes:
        budget: the most bytes of all grammars. What live sequences use is not dropped. What their
            lexers learn together has as much again.
        measures: memory is read. `False` in a rank that must drop the same grammars as others: then
            a grammar counts the size that came with its request, or one by the length of its text.
        sections: those of all its matchers.
        draw: a random number from 0 to 1, which decides whether a call is measured.
    """

    def __init__(
        self, budget: int = DEFAULT_GRAMMAR_BYTES, draw: Callable[[], float] = random.random
    ) -> None:
        self.budget = budget
        self.measures = True
        self.sections = Sections()
        self.draw = draw
        self._lock = threading.Lock()
        # What is measured is compiled by one thread at a time.
        self._measuring = threading.Lock()
        self._grammars: OrderedDict[str, CompiledGrammar] = OrderedDict()
        # Grammars that have left the store and are still used.
        self._dropped: weakref.WeakSet[CompiledGrammar] = weakref.WeakSet()
        self._usage: CompiledGrammars | None = None
        self._learned_since_bound = 0
        self._freed: deque[int] = deque()
        self._freed_bytes = 0
        self._trimmer: threading.Timer | None = None

    @property
    def usage(self) -> CompiledGrammars:
        """All grammars that take memory, those included that have left the store.

        What lexers have learned is that of the last time when a grammar came, went or was asked.
        """
        usage = self._usage
        if usage is None or self._freed:
            with self._lock:
                self._count_freed()
                sizes = [compiled.size for compiled in self._all()]
                usage = self._usage = CompiledGrammars(len(sizes), sum(sizes))
        return usage

    def use(
        self,
        grammar: str,
        make: Callable[[], Any],
        size: int | None = None,
        *,
        refuses: bool = True,
    ) -> GrammarUse:
        """A use of a serialized grammar, which is compiled if the store does not have it.

        Args:
            make: compiles it.
            size: the bytes that it takes, if they are known.
            refuses: there are bounds for one grammar and for those of live sequences. Without them,
                a grammar that has left the store is not compiled again while a sequence has it.

        Raises:
            GrammarsFull: those of live sequences leave no room for it.
            ValueError: it cannot be compiled, or takes too much memory.
        """
        if size is None and not self.measures:
            size = UNMEASURED_BYTES_PER_CHARACTER * len(grammar)
        with self._lock:
            self._count_freed()
            compiled = self._grammars.get(grammar)
            if compiled is None and not refuses:
                compiled = self._live_dropped(grammar)
            if compiled is None:
                compiled = CompiledGrammar(grammar, size or 0, self._freed)
                if refuses:
                    self._check(compiled, compiled.compiled_bytes)
                self._grammars[grammar] = compiled
            if grammar in self._grammars:
                self._grammars.move_to_end(grammar)
            use = GrammarUse(self, compiled)
            compiled.uses.add(use)
            self._make_room()
        try:
            with compiled.lock:
                if compiled.matcher is None:
                    self._compile(compiled, make, measures=size is None, refuses=refuses)
        except BaseException as error:
            self.drop(compiled)
            # vLLM keeps the error in its request; its frames would keep the grammar there.
            del use, compiled
            raise error.with_traceback(None) from None
        return use

    def add_learned(self, learned_bytes: int) -> None:
        """Hears what a grammar has learned, in bytes, and bounds it now and then."""
        self._learned_since_bound += learned_bytes
        if self._learned_since_bound >= self.budget * LEARNED_SHARE:
            self.bound_learned()

    def bound_learned(self) -> None:
        """Lets the sequences of those grammars end whose lexers have learned most, if needed."""
        with self._lock:
            self._learned_since_bound = 0
            self._make_room()
            live = [each for each in self._all() if each.uses and not each.has_learned_too_much]
            excess = sum(each.learned.bytes for each in live) - self.budget
            while excess > 0:
                compiled = max(live, key=lambda each: each.learned.bytes)
                compiled.has_learned_too_much = True
                live.remove(compiled)
                excess -= compiled.learned.bytes
                self._drop(compiled)

    def drop(self, compiled: CompiledGrammar) -> None:
        """Forgets a grammar. Its live sequences keep it until they end."""
        with self._lock:
            self._drop(compiled)

    def _drop(self, compiled: CompiledGrammar) -> None:
        if self._grammars.get(compiled.grammar) is compiled:
            del self._grammars[compiled.grammar]
            self._dropped.add(compiled)
            self._usage = None

    def _all(self) -> list[CompiledGrammar]:
        return [*self._grammars.values(), *self._dropped]

    def _live_dropped(self, grammar: str) -> CompiledGrammar | None:
        """A grammar that has left the store and that a sequence still has."""
        for compiled in self._dropped:
            if compiled.grammar == grammar and compiled.uses and compiled.matcher is not None:
                return compiled
        return None

    def _compile(
        self, compiled: CompiledGrammar, make: Callable[[], Any], *, measures: bool, refuses: bool
    ) -> None:
        """Compiles a grammar. Those who wait for it get no matcher that is refused."""
        number = self.sections.begin()
        try:
            if not measures:
                compiled.matcher = make()
                return
            with self._measuring:
                bytes_before = heap.allocated_bytes()
                matcher = make()
                size = max(0, heap.allocated_bytes() - bytes_before)
        finally:
            self.sections.end(number)
        with self._lock:
            if refuses:
                self._check(compiled, size)
            compiled.compiled_bytes = size
            compiled.matcher = matcher
            self._make_room()

    def _check(self, compiled: CompiledGrammar, size: int) -> None:
        """Raises `ValueError` for a grammar that is too large by itself or beside live ones."""
        if (reason := too_large(size, self.budget)) is not None:
            raise ValueError(reason)
        in_use = (other for other in self._all() if other.uses and other is not compiled)
        bytes_in_use = sum(other.compiled_bytes for other in in_use)
        if bytes_in_use + size > self.budget:
            raise GrammarsFull(
                f"the formats of running requests take {_mib(bytes_in_use)} MiB of memory and "
                f"this one would take {_mib(size)} MiB, but {_mib(self.budget)} MiB are the most"
            )

    def _make_room(self) -> None:
        """Drops grammars without a sequence, the least recently used first, while it is needed."""
        self._usage = None
        free_bytes = self.budget - sum(compiled.size for compiled in self._all())
        for compiled in list(self._grammars.values()):
            if free_bytes >= 0:
                return
            if not compiled.uses:
                free_bytes += compiled.size
                self._drop(compiled)

    def _count_freed(self) -> None:
        """Counts grammars that are gone. A thread that no step waits for gives memory back soon."""
        while self._freed:
            self._freed_bytes += self._freed.popleft()
            self._usage = None
        if self._freed_bytes >= TRIM_BYTES and self._trimmer is None:
            self._trimmer = threading.Timer(TRIM_DELAY_S, self._trim)
            self._trimmer.daemon = True
            self._trimmer.start()

    def _trim(self) -> None:
        with self._lock:
            self._freed_bytes, self._trimmer = 0, None
        heap.trim()


_PROCESS_STORE = GrammarStore()


def process_store() -> GrammarStore:
    """The store of this process."""
    return _PROCESS_STORE


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}"
