"""The constraints of rows in the worker: what they force and allow, before and after drafts."""

import json
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine_adapter.types import ConstraintKind
from engine_adapter.vllm_engine import grammars
from engine_adapter.vllm_engine.grammars import new_matcher, serialized
from server.settings import Settings
from tests.engine_adapter.proposers.batches import batch

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
PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(Settings(engine="fake").model)


@pytest.fixture(scope="module")
def ll_tokenizer(tokenizer: Any) -> Any:
    import llguidance.hf

    return llguidance.hf.from_tokenizer(tokenizer, len(tokenizer))


class Row:
    """A row's constraint and the tokens that the row has."""

    def __init__(self, tokenizer: Any, ll_tokenizer: Any, kind: ConstraintKind, value: str) -> None:
        from engine_adapter.vllm_engine.worker.constraints import RowConstraint

        grammar = serialized(kind, value, any_whitespace=False)
        self.eos = ll_tokenizer.eos_token
        self.constraint = RowConstraint(new_matcher(ll_tokenizer, grammar), self.eos, 0)
        self._tokenizer = tokenizer
        self.tokens: list[int] = []

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens)
        return text

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
def row(tokenizer: Any, ll_tokenizer: Any) -> Row:
    made = Row(tokenizer, ll_tokenizer, ConstraintKind.JSON_SCHEMA, SCHEMA)
    made.emits()
    return made


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


def test_the_end_of_the_text_is_forced_with_its_last_tokens(
    tokenizer: Any, ll_tokenizer: Any
) -> None:
    row = Row(tokenizer, ll_tokenizer, ConstraintKind.CHOICE, '["maybe not", "yes"]')
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


def test_masks_are_those_of_the_engines_core(row: Row, ll_tokenizer: Any) -> None:
    """At every position of a text, whether it was drafted or emitted."""
    import llguidance.torch
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    from engine_adapter.vllm_engine.core.constrained import GrammarCompiler

    backend = SimpleNamespace(
        ll_tokenizer=ll_tokenizer,
        vocab_size=ll_tokenizer.vocab_size,
        disable_any_whitespace=True,
        disable_additional_properties=False,
    )
    core = GrammarCompiler().compile(backend, StructuredOutputOptions.JSON, SCHEMA)
    for i, token in enumerate(row.encode(TEXT)):
        bitmask = llguidance.torch.allocate_token_bitmask(1, ll_tokenizer.vocab_size)
        core.fill_bitmask(bitmask, 0)
        expected = bitmask.numpy().tobytes()
        assert (row.constraint.mask() or b"")[: len(expected)] == expected
        assert core.accept_tokens("r", [token])
        if i % 3:
            row.constraint.advance(token)
        else:
            row.emits(*row.encode(TEXT)[len(row.tokens) : i + 1])


# -- the constraints of a batch ----------------------------------------------------------------


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "_compiled", OrderedDict())


def constraints(**kinds: Any) -> Any:
    """`RowConstraints` of an engine on the demo target; request id -> its structured output."""
    from vllm.sampling_params import StructuredOutputsParams

    from engine_adapter.vllm_engine.worker.constraints import RowConstraints

    model = Settings(engine="fake").model
    config = SimpleNamespace(
        structured_outputs_config=SimpleNamespace(
            backend="guidance", disable_any_whitespace=True, disable_additional_properties=False
        ),
        model_config=model_config(model),
    )
    requests = {
        name: SimpleNamespace(
            sampling_params=SimpleNamespace(structured_outputs=StructuredOutputsParams(**kind))
        )
        for name, kind in kinds.items()
    }
    made = RowConstraints(config, SimpleNamespace(requests=requests))
    made.prepare()
    return made


def model_config(model: str) -> Any:
    from vllm.config import ModelConfig

    return ModelConfig(model=model)


def test_only_rows_with_a_constraint_that_are_drafted_for_have_one() -> None:
    made = constraints(a={"choice": ["yes", "no"]}, b={"regex": "[0-9]+"}, c={"regex": "x"})
    rows = dict.fromkeys("abcd", PROMPT)
    given = batch(rows, k=[4, 4, 0, 4])
    assert list(made.of(given)) == [None] * 4
    made.starts = dict.fromkeys("abc", len(PROMPT))
    found = made.of(given)
    assert [one is not None for one in found] == [True, True, False, False]
    assert found[0].mask() != found[1].mask()
    assert made.of(given)[0] is found[0]
    made.forget(["a", "unknown"])
    assert made.of(given)[0] is not found[0]


def test_a_constraint_begins_where_the_reasoning_has_ended() -> None:
    made = constraints(r={"choice": ["yes", "no"]})
    made.starts = {"r": 5}
    (found,) = made.of(batch({"r": [*PROMPT, 1, 1]}))
    (plain,) = constraints_at_start(made)
    assert found.mask() == plain.mask()
    made.starts = {"r": 6}
    (moved,) = made.of(batch({"r": [*PROMPT, 1, 1, 1]}))
    assert moved is not found
    assert moved.mask() == found.mask()


def constraints_at_start(made: Any) -> Any:
    made.forget(["r"])
    made.starts = {"r": len(PROMPT)}
    found = made.of(batch({"r": PROMPT}))
    made.forget(["r"])
    made.starts = {"r": 5}
    return found


def test_equal_grammars_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine_adapter.vllm_engine.worker import constraints as module

    compiled: list[str] = []

    def recorded(tokenizer: Any, grammar: str) -> Any:
        compiled.append(grammar)
        return new_matcher(tokenizer, grammar)

    monkeypatch.setattr(module, "new_matcher", recorded)
    made = constraints(a={"choice": ["yes"]}, b={"choice": ["yes"]}, c={"choice": ["no"]})
    made.starts = dict.fromkeys("abc", len(PROMPT))
    one, other, third = made.of(batch(dict.fromkeys("abc", PROMPT)))
    assert len(compiled) == 2
    one.advance(one.forced(1)[0])
    assert other.forced(4) != one.forced(4)
    assert third is not other


def test_what_the_engines_core_has_compiled_is_not_compiled_again(
    ll_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    from engine_adapter.vllm_engine.core.constrained import GrammarCompiler
    from engine_adapter.vllm_engine.worker import constraints as module

    backend = SimpleNamespace(
        ll_tokenizer=ll_tokenizer,
        vocab_size=ll_tokenizer.vocab_size,
        disable_any_whitespace=True,
        disable_additional_properties=False,
    )
    GrammarCompiler().compile(backend, StructuredOutputOptions.JSON, SCHEMA)
    monkeypatch.setattr(module, "new_matcher", None)
    made = constraints(r={"json": SCHEMA})
    made.starts = {"r": len(PROMPT)}
    (found,) = made.of(batch({"r": PROMPT}))
    assert found.forced(8)


def test_a_long_grammar_forces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine_adapter.vllm_engine.worker import constraints as module

    made = constraints(short={"choice": ["yes"]}, long={"choice": ["yes" * 20_000]})
    made.starts = dict.fromkeys(("short", "long"), len(PROMPT))
    short, long = made.of(batch(dict.fromkeys(("short", "long"), PROMPT)))
    assert short.forced(4)
    assert long.forced(4) == []
    assert long.mask() is not None
    monkeypatch.setattr(module, "MAX_FORCING_CHARS", 1)
    made.forget(["short"])
    assert made.of(batch({"short": PROMPT}))[0].forced(4) == []


def test_only_so_many_grammars_are_kept() -> None:
    for i in range(grammars.MAX_COMPILED + 2):
        grammars.remember(str(i), i)
    assert grammars.recall("1") is None
    assert grammars.recall("2") == 2


def test_a_grammar_that_cannot_be_compiled_costs_only_knowledge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from engine_adapter.vllm_engine.worker import constraints as module

    def fails(*_: Any) -> Any:
        raise ValueError("too large")

    made = constraints(a={"choice": ["yes"]})
    made.starts = {"a": len(PROMPT)}
    monkeypatch.setattr(module, "new_matcher", fails)
    for _ in range(2):
        assert list(made.of(batch({"a": PROMPT}))) == [None]


def test_another_backend_has_no_constraints_in_the_worker() -> None:
    made = constraints(a={"choice": ["yes"]})
    made._tokenizer = None
    made._vllm_config.structured_outputs_config.backend = "xgrammar"
    made.prepare()
    made.starts = {"a": len(PROMPT)}
    assert list(made.of(batch({"a": PROMPT}))) == [None]
