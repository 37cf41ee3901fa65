"""The constraint of a row in the worker: what it forces and allows, before and after drafts."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine_adapter.seam.types import ConstraintKind
from engine_adapter.vllm_engine.compiled_grammars import GrammarStore
from engine_adapter.vllm_engine.grammars import new_matcher, serialized
from tests.engine_adapter.vllm_engine.support.demo_backend import demo_backend
from tests.engine_adapter.vllm_engine.support.matcher_clock import set_matcher_clock

pytestmark = pytest.mark.needs_vllm

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"kind": {"const": "function"}, "count": {"type": "integer"}},
        "required": ["kind", "count"],
        "additionalProperties": False,
    }
)
TEXT = '{"kind":"function","count":12}'


@pytest.fixture(scope="module")
def backend() -> Any:
    return demo_backend()


class Row:
    """A row's constraint and the tokens that the row has."""

    def __init__(self, backend: Any, kind: ConstraintKind, value: str) -> None:
        from engine_adapter.vllm_engine.worker.constraints import RowConstraint

        grammar = serialized(kind, value, any_whitespace=False)
        self.eos = backend.ll_tokenizer.eos_token
        use = GrammarStore().use(grammar, lambda: new_matcher(backend.ll_tokenizer, grammar))
        self.constraint = RowConstraint(use, self.eos, 0)
        self.encode: Callable[[str], list[int]] = backend.encode
        self.decode: Callable[[list[int]], str] = backend.decode
        self.tokens: list[int] = []

    def emits(self, *tokens: int) -> None:
        self.tokens += tokens
        self.constraint.follow(np.array(self.tokens, np.int32))

    def forced(self, count: int = 20) -> str:
        """The text that is forced, with a mark for its end."""
        tokens = self.constraint.forced(count)
        end = "<end>" if self.eos in tokens else ""
        return self.decode([token for token in tokens if token != self.eos]) + end

    def allowed(self) -> set[int] | None:
        mask = self.constraint.mask()
        if mask is None:
            return None
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
        return set(np.flatnonzero(bits).tolist())


@pytest.fixture
def row(backend: Any) -> Row:
    made = Row(backend, ConstraintKind.JSON_SCHEMA, SCHEMA)
    made.emits()
    return made


@pytest.mark.parametrize(("vocabulary", "words"), [(2048, 64), (2049, 65), (2080, 65), (31, 1)])
def test_a_mask_has_a_bit_for_each_token_of_the_target(vocabulary: int, words: int) -> None:
    from engine_adapter.vllm_engine.worker.constraints import cut_mask

    mask = np.arange(3 * 65, dtype=np.int32).reshape(3, 65)
    np.testing.assert_array_equal(cut_mask(mask, vocabulary), mask[:, :words])


def test_the_text_between_the_values_is_forced(row: Row) -> None:
    first = row.forced()
    assert first
    assert TEXT.startswith(first)
    row.emits(*row.encode('{"kind":"function","count":'))
    assert row.forced() == ""
    assert set(row.encode("1")) <= (row.allowed() or set())


def test_at_most_so_many_tokens_are_forced(row: Row) -> None:
    whole = row.constraint.forced(20)
    assert [row.constraint.forced(n) for n in range(1, 4)] == [whole[:1], whole[:2], whole[:3]]


def test_the_end_of_the_text_is_forced_with_its_last_tokens(backend: Any) -> None:
    row = Row(backend, ConstraintKind.CHOICE, '["maybe not", "yes"]')
    row.emits(row.encode("maybe not")[0])
    assert row.forced().endswith("t<end>")
    assert not row.forced(len(row.constraint.forced(20)) - 1).endswith("<end>")
    row.emits(*row.encode("maybe not")[1:])
    assert row.forced() == ""
    assert row.allowed() == {row.eos}


def test_asking_changes_nothing(row: Row) -> None:
    asked = [(row.forced(), row.allowed()) for _ in range(3)]
    assert asked[0] == asked[1] == asked[2]


class Counting:
    """A matcher whose searches for forced tokens are counted."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self.searches = 0

    def compute_ff_tokens(self) -> list[int]:
        self.searches += 1
        found: list[int] = self._matcher.compute_ff_tokens()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)


def test_a_forced_text_is_looked_for_once(row: Row) -> None:
    counting = row.constraint._matcher = Counting(row.constraint._matcher)
    whole = row.constraint.forced(20)
    for i in range(1, len(whole)):
        row.emits(whole[i - 1])
        assert row.constraint.forced(20) == whole[i:]
    assert counting.searches == 1
    row.emits(whole[-1])
    assert row.constraint.forced(20) == []
    assert counting.searches == 2


def test_after_another_spelling_the_rest_of_a_forced_text_is_looked_for_again(row: Row) -> None:
    whole = row.constraint.forced(20)
    at = next(i for i, token in enumerate(whole) if len(row.decode([token])) > 1)
    text = row.decode([whole[at]])
    row.emits(*whole[:at], row.encode(text[0])[0])
    assert row.forced().startswith(text[1:])


def test_drafts_are_read_and_taken_back(row: Row) -> None:
    row.emits(*row.encode('{"kind":"function","count":'))
    before = row.allowed()
    for token in row.encode("12}"):
        assert token in (row.allowed() or set())
        row.constraint.advance(token)
    assert row.allowed() == {row.eos}
    row.emits(*row.encode("7"))
    assert row.forced() == ""
    row.constraint.advance(row.encode("}")[0])
    assert row.allowed() == {row.eos}
    row.emits(*row.encode("8"))
    assert row.allowed() != {row.eos}
    assert before is not None
    assert row.eos not in before


def test_accepted_drafts_are_not_read_twice(row: Row) -> None:
    tokens = row.encode(TEXT)
    for start in range(0, len(tokens), 4):
        for token in tokens[start : start + 4]:
            row.constraint.advance(token)
        row.emits(*tokens[start : start + 4])
    assert row.allowed() == {row.eos}


def test_a_draft_that_does_not_fit_hides_the_constraint_until_the_row_continues(row: Row) -> None:
    row.constraint.advance(row.encode("]")[0])
    assert row.allowed() is None
    assert row.forced() == ""
    row.emits(row.encode("{")[0])
    assert row.allowed() is not None
    assert row.forced()


def test_a_row_that_does_not_fit_is_free(row: Row) -> None:
    row.emits(row.encode("]")[0])
    assert row.allowed() is None
    row.emits(*row.encode("{"))
    assert row.allowed() is None
    assert row.forced() == ""


def test_masks_are_those_of_the_engines_core(row: Row, backend: Any) -> None:
    """At every position of a text, whether it was drafted or emitted."""
    import llguidance.torch
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    from engine_adapter.vllm_engine.core.constrained import GrammarCompiler

    core = GrammarCompiler(GrammarStore()).compile(backend, StructuredOutputOptions.JSON, SCHEMA)
    for i, token in enumerate(row.encode(TEXT)):
        bitmask = llguidance.torch.allocate_token_bitmask(1, backend.vocab_size)
        core.fill_bitmask(bitmask, 0)
        expected = bitmask.numpy().tobytes()
        assert (row.constraint.mask() or b"")[: len(expected)] == expected
        assert core.accept_tokens("r", [token])
        if i % 3:
            row.constraint.advance(token)
        else:
            row.emits(*row.encode(TEXT)[len(row.tokens) : i + 1])


def test_the_time_of_every_call_is_counted(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    row.constraint.take_time()
    set_matcher_clock(monkeypatch, call_s=0.5, reading_s=0.002)
    row.constraint.mask()
    row.forced()
    row.constraint.advance(row.encode("{")[0])
    row.emits(row.encode("{")[0])
    # With the reading of the memory, which these long calls have brought about.
    assert row.constraint.take_time() == (pytest.approx(4 * 0.504), 4)
    assert row.constraint.take_time() == (0.0, 0)


def test_a_slow_constraint_is_not_asked_for_the_rest_of_the_step(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Row(backend, ConstraintKind.JSON_SCHEMA, SCHEMA)
    row.constraint._step_s = 1.2
    set_matcher_clock(monkeypatch, call_s=0.5)
    row.emits()
    tokens = row.encode(TEXT)
    assert row.allowed() is not None
    row.constraint.advance(tokens[0])
    assert row.allowed() is None
    assert row.forced() == ""
    row.constraint.advance(tokens[1])
    spent = row.constraint.take_time()
    assert spent == (pytest.approx(1.5), 3), "two more calls would have been counted"
    row.emits(*tokens[:2])
    assert set(tokens[2:3]) <= (row.allowed() or set()), "the next step knows it again"
