"""The compiled grammars of a process: what is kept, what is counted, and what is refused."""

import gc
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from engine_adapter.seam.counts import CompiledGrammars
from engine_adapter.vllm_engine import compiled_grammars, heap
from engine_adapter.vllm_engine.compiled_grammars import (
    LEAST_BYTES,
    GrammarsFull,
    GrammarStore,
    GrammarUse,
    max_bytes_of_one,
    too_large,
)
from engine_adapter.vllm_engine.learned_memory import LEARNING_BYTES
from engine_adapter.vllm_engine.mask_allowance import SLOW_CALL_S

MIB = 1 << 20


@pytest.fixture
def store() -> GrammarStore:
    """A store for a hundred MiB."""
    return GrammarStore(100 * MIB)


class Compilations:
    """Compiles nothing, and counts how often it was asked for each grammar."""

    def __init__(self, store: GrammarStore) -> None:
        self._store = store
        self.made: list[str] = []

    def use(self, name: str, mib: int = 1, **options: Any) -> GrammarUse:
        def make() -> str:
            self.made.append(name)
            return name

        return self._store.use(name, make, mib * MIB, **options)


@pytest.fixture
def compilations(store: GrammarStore) -> Compilations:
    return Compilations(store)


def test_the_least_recently_used_go_first_when_bytes_are_short(
    store: GrammarStore, compilations: Compilations
) -> None:
    for name in "abcdef":
        compilations.use(name, 20)
        compilations.use("a", 20)
    assert store.usage == CompiledGrammars(5, 100 * MIB)
    for name in "aedcb":
        compilations.use(name, 20)
    assert "".join(compilations.made) == "abcdefb"


def test_a_thousand_large_grammars_take_no_more_than_the_budget(
    store: GrammarStore, compilations: Compilations
) -> None:
    for i in range(1000):
        compilations.use(str(i), 7)
        assert store.usage.bytes <= 100 * MIB
    assert store.usage.number == 14


def test_a_tiny_grammar_counts_too(store: GrammarStore, compilations: Compilations) -> None:
    compilations.use("a", 0)
    assert store.usage == CompiledGrammars(1, LEAST_BYTES)


def test_what_a_live_sequence_uses_stays_and_is_compiled_once(
    store: GrammarStore, compilations: Compilations
) -> None:
    held = compilations.use("live", 25)
    for i in range(20):
        compilations.use(str(i), 20)
    assert compilations.use("live", 25).compiled is held.compiled
    assert compilations.made.count("live") == 1


def test_a_grammar_that_is_dropped_counts_until_its_last_sequence_ends(
    store: GrammarStore, compilations: Compilations
) -> None:
    uses = [compilations.use("a", 20) for _ in range(2)]
    uses[0].drop()
    assert store.usage == CompiledGrammars(1, 20 * MIB)
    again = compilations.use("a", 20)
    assert compilations.made == ["a", "a"]
    uses[1].drop()
    assert again.compiled is compilations.use("a", 20).compiled, "another one was dropped"
    assert store.usage == CompiledGrammars(2, 40 * MIB)
    del uses[0]
    assert store.usage == CompiledGrammars(2, 40 * MIB)
    uses.clear()
    assert store.usage == CompiledGrammars(1, 20 * MIB)


def test_one_that_live_sequences_leave_no_room_for_is_refused_until_they_end(
    store: GrammarStore, compilations: Compilations
) -> None:
    live = [compilations.use(str(i), 25) for i in range(4)]
    compilations.use("0", 25)
    with pytest.raises(GrammarsFull, match=r"running requests take 100\.0 MiB .* take 5\.0 MiB"):
        compilations.use("late", 5)
    assert "late" not in compilations.made
    compilations.use("late", 5, refuses=False)
    del live[0]
    compilations.use("later", 5)


def test_one_that_takes_more_than_a_quarter_is_refused(
    store: GrammarStore, compilations: Compilations
) -> None:
    with pytest.raises(ValueError, match=r"takes 26\.0 MiB of memory .* the most is 25\.0 MiB"):
        compilations.use("a", 26)
    assert too_large(max_bytes_of_one(100 * MIB), 100 * MIB) is None
    assert compilations.made == []
    assert store.usage == CompiledGrammars()


def test_one_that_cannot_be_compiled_is_not_kept(store: GrammarStore) -> None:
    def fails() -> Any:
        raise ValueError("a fault")

    for _ in range(2):
        with pytest.raises(ValueError, match="a fault"):
            store.use("a", fails, MIB)
        assert store.usage == CompiledGrammars()


def test_what_nobody_has_measured_is_measured_here(store: GrammarStore) -> None:
    blocks: list[bytearray] = []

    def make(mib: int) -> Callable[[], Any]:
        return lambda: blocks.append(bytearray(mib * MIB))

    use = store.use("a", make(20))
    assert 20 * MIB <= use.compiled.size < 25 * MIB
    with pytest.raises(ValueError, match="a quarter of --max-compiled-grammar-bytes"):
        store.use("b", make(30))
    assert store.usage.number == 1


def test_what_a_lexer_learns_counts_and_pushes_others_out(
    store: GrammarStore, compilations: Compilations
) -> None:
    compilations.use("idle", 20)
    use = compilations.use("a", 20)
    spent: list[tuple[float, float]] = []

    def spend(seconds: float, reading_s: float) -> None:
        spent.append((seconds, reading_s))

    with use.timed(spend):
        learned = bytearray(50 * MIB)
    assert len(spent) == 1
    assert use.compiled.size == pytest.approx(70 * MIB, abs=5 * MIB)
    compilations.use("b", 20)
    compilations.use("idle", 20)
    assert compilations.made == ["idle", "a", "b", "idle"]
    with use.timed(spend):
        del learned
    assert use.compiled.size == pytest.approx(20 * MIB, abs=5 * MIB)


def test_lexers_of_live_sequences_learn_no_more_than_the_budget_together(
    store: GrammarStore, compilations: Compilations
) -> None:
    compilations.use("idle", 20)
    uses = [compilations.use(name) for name in "abcd"]
    learned = []
    for mib, use in zip((40, 10, 45, 30), uses, strict=True):
        assert not any(each.compiled.has_learned_too_much for each in uses)
        with use.timed(lambda *_: None):
            learned.append(bytearray(mib * MIB))
    assert [use.compiled.has_learned_too_much for use in uses] == [False, False, True, False]
    with uses[1].timed(lambda *_: None):
        learned.append(bytearray(MIB))
    assert not uses[1].compiled.has_learned_too_much, "what must end does not count any more"
    compilations.use("idle", 20)
    assert compilations.made.count("idle") == 2, "what no sequence uses goes first"
    assert compilations.use("c").compiled is not uses[2].compiled


def test_reading_the_memory_counts_for_calls_that_learn_only(
    store: GrammarStore, compilations: Compilations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an engine with much memory a reading takes longer than a slow call."""
    heap_bytes = 0

    def read() -> int:
        ends_at = time.thread_time() + SLOW_CALL_S
        while time.thread_time() < ends_at:
            pass
        return heap_bytes

    monkeypatch.setattr(heap, "allocated_bytes", read)
    use, readings_s = compilations.use("a"), list[float]()

    def spend(seconds: float, reading_s: float) -> None:
        assert seconds < SLOW_CALL_S
        readings_s.append(reading_s)

    with use.timed(spend):
        heap_bytes += LEARNING_BYTES - 1
    with use.timed(spend):
        heap_bytes += LEARNING_BYTES
    assert readings_s[0] == 0
    assert readings_s[1] >= 2 * SLOW_CALL_S, "before the call and after it"
    # After a reading in vain the next calls are not measured.
    other, learned = compilations.use("b"), use.compiled.learned
    while learned.weight_of_call(draw=1.0):
        pass
    monkeypatch.setattr(store, "draw", lambda: 0.0)
    with other.timed(lambda *_: None), use.timed(lambda *_: None):
        pass
    assert learned.weight_of_call(draw=1.0) == 0


def test_what_another_section_allocates_is_not_learned(compilations: Compilations) -> None:
    one, other = compilations.use("a"), compilations.use("b")
    with one.timed(lambda *_: None), other.timed(lambda *_: None):
        block = bytearray(20 * MIB)
    assert (one.compiled.learned.bytes, other.compiled.learned.bytes) == (0, 0)
    del block


@pytest.mark.parametrize("size", [25 * MIB, None])
def test_ranks_compile_the_same_whatever_is_sampled_or_measured(size: int | None) -> None:
    def compiled_by(draw: float, noise_mib: int) -> list[str]:
        store = GrammarStore(100 * MIB, lambda: draw)
        store.measures = False
        made: list[str] = []
        blocks: list[bytearray] = []

        def use(name: str) -> GrammarUse:
            def make() -> str:
                made.append(name)
                blocks.append(bytearray(noise_mib * MIB))
                return name

            return store.use(name, make, size, refuses=False)

        first = use("a")
        for _ in range(3):
            with first.timed(lambda *_: None):
                blocks.append(bytearray(2 * MIB))
        del first
        for name in "bcda":
            use(name)
        return made

    assert compiled_by(0.0, 30) == compiled_by(1.0, 0) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("mib", [None, 25])
def test_an_error_that_is_kept_keeps_no_grammar(store: GrammarStore, mib: int | None) -> None:
    def make() -> Any:
        block = bytearray(30 * MIB)
        if mib is not None:
            raise ValueError(f"a fault after {len(block)} bytes")
        return block

    errors: list[dict[str, Any]] = []
    gc.collect()
    gc.disable()
    try:
        for i in range(5):
            request: dict[str, Any] = {}
            try:
                store.use(str(i), make, None if mib is None else mib * MIB)
            except ValueError as error:
                request["error"] = error
            errors.append(request)
        assert not any(isinstance(request["error"], GrammarsFull) for request in errors)
        assert store.usage == CompiledGrammars()
    finally:
        gc.enable()


def test_a_refused_grammar_is_refused_to_all_who_wait_for_it(store: GrammarStore) -> None:
    begun, waiting = threading.Event(), threading.Event()
    results: list[Any] = []

    def make() -> bytearray:
        begun.set()
        assert waiting.wait(60)
        return bytearray(30 * MIB)

    def ask() -> None:
        try:
            results.append(store.use("a", make))
        except ValueError as error:
            results.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    threads[0].start()
    assert begun.wait(60)
    for thread in threads[1:]:
        thread.start()
    waiting.set()
    for thread in threads:
        thread.join()
    assert all("the most is 25.0 MiB" in str(result) for result in results), results


def test_a_grammar_that_has_left_the_store_is_not_compiled_in_a_step_while_it_is_live(
    compilations: Compilations,
) -> None:
    live = compilations.use("a")
    live.drop()
    assert compilations.use("a", refuses=False).compiled is live.compiled
    assert compilations.made == ["a"]
    compilations.use("a")
    assert compilations.made == ["a", "a"], "a new sequence gets a new one"


def test_the_garbage_collector_waits_for_no_lock(
    store: GrammarStore, compilations: Compilations
) -> None:
    cycle: dict[str, Any] = {"use": compilations.use("a", 20)}
    cycle["self"] = cycle
    cycle["use"].drop()
    del cycle
    done = threading.Event()

    def collect() -> None:
        with store._lock:
            gc.collect()
        done.set()

    threading.Thread(target=collect, daemon=True).start()
    assert done.wait(60)
    assert store.usage == CompiledGrammars()


def test_threads_that_ask_at_once_never_hold_more_than_the_budget(
    store: GrammarStore, compilations: Compilations
) -> None:
    most: list[int] = []

    def ask(first: int) -> None:
        for i in range(first, first + 200):
            use = compilations.use(str(i % 37), 10)
            most.append(store.usage.bytes)
            del use

    threads = [threading.Thread(target=ask, args=(n * 11,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) <= 100 * MIB


def test_memory_is_given_back_after_much_was_dropped(
    store: GrammarStore, compilations: Compilations, monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed = threading.Event()
    threads: list[threading.Thread] = []

    def trim() -> None:
        threads.append(threading.current_thread())
        trimmed.set()

    monkeypatch.setattr(compiled_grammars, "TRIM_DELAY_S", 0.01)
    monkeypatch.setattr(heap, "trim", trim)
    compilations.use("small", 1).drop()
    large = compilations.use("large", 20)
    large.drop()
    assert threads == []
    assert store.usage.number == 1
    assert store._trimmer is None, "a sequence still has it"
    del large
    assert store.usage.number == 0
    assert trimmed.wait(60)
    assert threads != [threading.current_thread()]


@pytest.mark.needs_vllm
def test_real_grammars_leave_the_heap_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forced text takes some 600 bytes for each character, the first time that it is masked."""
    import json

    from engine_adapter.seam.types import ConstraintKind
    from engine_adapter.vllm_engine.core.constrained import _warmed
    from engine_adapter.vllm_engine.grammars import new_matcher, serialized
    from tests.engine_adapter.vllm_engine.support.demo_backend import demo_backend

    monkeypatch.setattr(compiled_grammars, "TRIM_BYTES", 1 << 40)  # its timer has the store
    tokenizer = demo_backend().ll_tokenizer
    store = GrammarStore(40 * MIB)

    def warmed(grammar: str) -> Any:
        return _warmed(new_matcher(tokenizer, grammar))

    gc.collect()
    before = heap.allocated_bytes()
    for i in range(12):
        schema = json.dumps({"const": f"{i} " + "text " * 2000})
        grammar = serialized(ConstraintKind.JSON_SCHEMA, schema, any_whitespace=False)
        use = store.use(grammar, partial(warmed, grammar))
        assert 3 * MIB < use.compiled.size < 10 * MIB
        assert store.usage.bytes <= 40 * MIB
        assert heap.allocated_bytes() - before < 55 * MIB
    del use
    taken = heap.allocated_bytes() - before
    assert taken == pytest.approx(store.usage.bytes, rel=0.3), "what is counted is what is taken"
    del store
    gc.collect()
    assert heap.allocated_bytes() - before < 5 * MIB
