"""What lexers learn: which calls are measured, and that the bound holds for the heap."""

import gc
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from engine_adapter.seam.types import ConstraintKind
from engine_adapter.vllm_engine import heap
from engine_adapter.vllm_engine.compiled_grammars import GrammarStore
from engine_adapter.vllm_engine.learned_memory import (
    LEARNING_BYTES,
    LONG_CALL_S,
    MAX_LEARNED_BYTES,
    MEASURED_CALLS,
    LearnedMemory,
)
from tests.cases import proved_beyond

MIB = 1 << 20
NEVER, ALWAYS = 1.0, 0.0


@pytest.fixture
def quiet() -> LearnedMemory:
    """The memory of a grammar whose first calls have learned nothing."""
    learned = LearnedMemory()
    weights(learned, MEASURED_CALLS)
    return learned


def weights(learned: LearnedMemory, calls: int, draw: float = NEVER) -> list[int]:
    return [learned.weight_of_call(draw) for _ in range(calls)]


def test_the_first_calls_of_a_grammar_are_measured() -> None:
    learned = LearnedMemory()
    assert weights(learned, MEASURED_CALLS + 2) == [1] * MEASURED_CALLS + [0, 0]


def test_a_call_that_is_drawn_stands_for_those_that_are_not(quiet: LearnedMemory) -> None:
    assert weights(quiet, 2, ALWAYS) == [16, 16]
    assert quiet.count(1000, 16) == 16_000
    assert quiet.bytes == 16_000
    assert weights(quiet, 1) == [0]


def test_calls_after_one_that_learns_are_measured(quiet: LearnedMemory) -> None:
    quiet.count(LEARNING_BYTES, 16)
    assert weights(quiet, MEASURED_CALLS + 1) == [1] * MEASURED_CALLS + [0]


def test_calls_after_a_long_one_are_measured(quiet: LearnedMemory) -> None:
    quiet.note_time(LONG_CALL_S / 2)
    assert weights(quiet, 1) == [0]
    quiet.note_time(LONG_CALL_S)
    assert weights(quiet, MEASURED_CALLS + 1) == [1] * MEASURED_CALLS + [0]


def test_a_call_stands_for_those_before_it_that_could_not_be_measured(
    quiet: LearnedMemory,
) -> None:
    quiet.miss(1)
    quiet.miss(16)
    assert quiet.bytes == 0
    assert quiet.count(100, 1) == 1800
    assert quiet.count(100, 1) == 100


def test_what_is_learned_never_counts_less_than_nothing_nor_more_than_the_most() -> None:
    learned = LearnedMemory()
    for allocated, weight, counted in (
        (-MIB, 1, 0),
        (MIB, 16, 16 * MIB),
        (MIB << 10, 1, MAX_LEARNED_BYTES),
    ):
        learned.count(allocated, weight)
        assert learned.bytes == counted


# -- real lexers -------------------------------------------------------------------------------


def slow(seed: int) -> str:
    """A regular expression of some 40 characters, whose lexer has new states after each token."""
    letters = "".join(random.Random(seed).sample("defghijklmnop", 6))
    return rf"(.|\n)*[{letters}](.|\n){{150}}[abc]"


def late(seed: int) -> str:
    """One whose lexer begins to learn when its first calls have learned nothing."""
    return f"a{{{MEASURED_CALLS}}}{slow(seed)}"


def alternatives(seed: int) -> str:
    letters = "".join(random.Random(seed).sample("fghjklmnpq", 3))
    return rf"(.*[aeiou{letters}].{{30}}[xyz].{{30}}|.*[bcd].{{40}}[efg].*)"


def advanced(grammar: Any, mask: Any, tokens: random.Random) -> bool:
    """Whether a matcher, as EngineCore has it, has read one more token that its mask allows."""
    import numpy as np

    grammar.fill_bitmask(mask, 0)
    allowed = np.flatnonzero(np.unpackbits(mask.numpy().view(np.uint8), bitorder="little"))
    texts = allowed[(allowed > 10) & (allowed < grammar.vocab_size)].tolist()
    return bool(grammar.accept_tokens("r", [tokens.choice(texts)]))


def attack(form: Any, budget: int) -> tuple[int, int, list[str | None]]:
    """Lets 64 lexers learn at once, in a store with this budget.

    Returns the most that the heap grew by, in bytes, how many lexers are left, and why the others
    are not. To run in a process of its own: what else a process does changes its heap.
    """
    import llguidance.torch

    from engine_adapter.vllm_engine import compiled_grammars
    from engine_adapter.vllm_engine.core.constrained import BoundedGrammar, _warmed
    from engine_adapter.vllm_engine.grammars import new_matcher, serialized
    from tests.engine_adapter.vllm_engine.support.demo_backend import demo_backend

    compiled_grammars.TRIM_BYTES = 1 << 40  # its timer has the store
    backend, store = demo_backend(), GrammarStore(budget, random.Random(1).random)
    tokenizer = backend.ll_tokenizer

    def begun(seed: int) -> Any:
        grammar = serialized(ConstraintKind.REGEX, form(seed), any_whitespace=False)
        use = store.use(grammar, lambda: _warmed(new_matcher(tokenizer, grammar)))
        return BoundedGrammar(use, tokenizer, backend.vocab_size)

    gc.collect()
    before, most, failures = heap.allocated_bytes(), 0, []
    tokens = random.Random(1)
    mask = llguidance.torch.allocate_token_bitmask(1, backend.vocab_size)
    live = [begun(seed) for seed in range(64)]
    for _ in range(40):
        ended = [grammar for grammar in live if not advanced(grammar, mask, tokens)]
        failures += [grammar.failure for grammar in ended]
        live = [grammar for grammar in live if grammar not in ended]
        del ended
        most = max(most, heap.allocated_bytes() - before)
    return most, len(live), failures


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        yield executor


@pytest.mark.needs_vllm
@pytest.mark.parametrize("form", proved_beyond([alternatives], [slow, late, alternatives]))
def test_lexers_that_learn_at_once_take_no_more_than_the_budgets(
    process: ProcessPoolExecutor, form: Any
) -> None:
    """With one call in 16 measured, they are estimated at the budget and take 6 times as much."""
    budget = 48 * MIB
    most, num_live, failures = process.submit(attack, form, budget).result(120)
    print(f"{form.__name__}: {most / MIB:.0f} MiB; {num_live} of 64 are left")
    assert budget / 2 < most < 2 * budget
    assert len(failures) > 10
    assert all("too much memory" in (failure or "") for failure in failures)
    assert num_live
