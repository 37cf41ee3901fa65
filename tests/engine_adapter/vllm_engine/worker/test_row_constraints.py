"""The constraints of a batch's rows in the worker: which rows have one, and what is compiled."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.vllm_engine import compiled_grammars
from engine_adapter.vllm_engine.compiled_grammars import GrammarStore, process_store
from engine_adapter.vllm_engine.grammars import new_matcher
from server.settings import Settings
from tests.engine_adapter.proposers.batches import batch
from tests.engine_adapter.vllm_engine.support.demo_backend import demo_backend

pytestmark = pytest.mark.needs_vllm

PROMPT = [5, 6, 7]
CHOICES = '["maybe not", "maybe so"]'


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_grammars, "_PROCESS_STORE", GrammarStore())


def constraints(ranks: int = 1, **kinds: Any) -> Any:
    """`RowConstraints` of an engine on the demo target; request id -> its structured output."""
    from vllm.sampling_params import StructuredOutputsParams

    from engine_adapter.vllm_engine.worker.constraints import RowConstraints

    model = Settings(engine="fake").model
    config = SimpleNamespace(
        structured_outputs_config=SimpleNamespace(
            backend="guidance", disable_any_whitespace=True, disable_additional_properties=False
        ),
        model_config=model_config(model),
        parallel_config=SimpleNamespace(world_size=ranks),
        additional_config={"specgate": {"proposers": [], "progress_pipe": None}},
    )
    requests = {
        name: SimpleNamespace(
            sampling_params=SimpleNamespace(
                structured_outputs=StructuredOutputsParams(**kind), extra_args=None
            )
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
    assert list(made.for_batch(given)) == [None] * 4
    made.starts = dict.fromkeys("abc", len(PROMPT))
    found = made.for_batch(given)
    assert [one is not None for one in found] == [True, True, False, False]
    assert found[0].mask() != found[1].mask()
    assert made.for_batch(given)[0] is found[0]
    made.forget(["a", "unknown"])
    assert made.for_batch(given)[0] is not found[0]


def test_a_constraint_begins_where_the_reasoning_has_ended() -> None:
    made = constraints(r={"choice": ["yes", "no"]})
    made.starts = {"r": 5}
    (found,) = made.for_batch(batch({"r": [*PROMPT, 1, 1]}))
    (plain,) = constraints_at_start(made)
    assert found.mask() == plain.mask()
    made.starts = {"r": 6}
    (moved,) = made.for_batch(batch({"r": [*PROMPT, 1, 1, 1]}))
    assert moved is not found
    assert moved.mask() == found.mask()


def constraints_at_start(made: Any) -> Any:
    made.forget(["r"])
    made.starts = {"r": len(PROMPT)}
    found = made.for_batch(batch({"r": PROMPT}))
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
    one, other, third = made.for_batch(batch(dict.fromkeys("abc", PROMPT)))
    assert len(compiled) == 2
    one.advance(one.forced(1)[0])
    assert other.forced(4) != one.forced(4)
    assert third is not other


def test_what_the_engines_core_has_compiled_is_not_compiled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    from engine_adapter.vllm_engine.core.constrained import GrammarCompiler
    from engine_adapter.vllm_engine.worker import constraints as module

    GrammarCompiler(process_store()).compile(
        demo_backend(), StructuredOutputOptions.CHOICE, CHOICES
    )
    monkeypatch.setattr(module, "new_matcher", None)
    made = constraints(r={"choice": json.loads(CHOICES)})
    made.starts = {"r": len(PROMPT)}
    (found,) = made.for_batch(batch({"r": PROMPT}))
    assert found.forced(8)


def test_a_long_grammar_forces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine_adapter.vllm_engine.worker import constraints as module

    made = constraints(short={"choice": ["yes"]}, long={"choice": ["yes" * 20_000]})
    made.starts = dict.fromkeys(("short", "long"), len(PROMPT))
    short, long = made.for_batch(batch(dict.fromkeys(("short", "long"), PROMPT)))
    assert short.forced(4)
    assert long.forced(4) == []
    assert long.mask() is not None
    monkeypatch.setattr(module, "MAX_FORCING_CHARS", 1)
    made.forget(["short"])
    assert made.for_batch(batch({"short": PROMPT}))[0].forced(4) == []


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
        assert list(made.for_batch(batch({"a": PROMPT}))) == [None]


def test_another_backend_has_no_constraints_in_the_worker() -> None:
    made = constraints(a={"choice": ["yes"]})
    made._tokenizer = None
    made._vllm_config.structured_outputs_config.backend = "xgrammar"
    made.prepare()
    made.starts = {"a": len(PROMPT)}
    assert list(made.for_batch(batch({"a": PROMPT}))) == [None]


def test_times_are_those_of_the_rows_that_were_asked() -> None:
    made = constraints(a={"choice": ["yes", "no"]}, b={"choice": ["yes"]})
    made.starts = dict.fromkeys("ab", len(PROMPT))
    made.for_batch(batch(dict.fromkeys("ab", PROMPT)))
    assert set(made.take_times()) == {"a", "b"}
    (found,) = made.for_batch(batch({"a": PROMPT}))
    found.mask()
    ((request_id, (seconds, calls)),) = made.take_times().items()
    assert (request_id, calls) == ("a", 2)
    assert seconds > 0
    assert made.take_times() == {}


def test_a_row_whose_constraint_took_too_long_is_drafted_for_without_it() -> None:
    """As EngineCore decides: see `core.constrained`."""
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    from engine_adapter.vllm_engine.core.constrained import (
        GrammarCompiler,
        constraint_starts,
        count_draft_times,
    )

    made = constraints(r={"choice": json.loads(CHOICES)})
    grammar = GrammarCompiler(process_store()).compile(
        demo_backend(), StructuredOutputOptions.CHOICE, CHOICES
    )
    request = SimpleNamespace(
        request_id="r",
        num_tokens=len(PROMPT),
        structured_output_request=SimpleNamespace(grammar=grammar, reasoning_ended=None),
    )
    manager = SimpleNamespace(reasoner_cls=None)
    guided = 0
    while (starts := constraint_starts(manager, [request])) and guided < 100:
        made.starts = starts
        (found,) = made.for_batch(batch({"r": PROMPT}))
        found.mask()
        seconds, calls = made.take_times()["r"]
        count_draft_times({"r": request}, {"r": (seconds + 0.05, calls)})  # a slow mask
        guided += 1
    assert 0 < guided < 10
    made.starts = starts
    assert list(made.for_batch(batch({"r": PROMPT}))) == [None]


@pytest.mark.parametrize(("ranks", "known"), [(1, False), (2, True)])
def test_several_ranks_know_the_same_also_if_one_is_slower(
    monkeypatch: pytest.MonkeyPatch, ranks: int, known: bool
) -> None:
    from engine_adapter.vllm_engine.worker import constraints as module

    monkeypatch.setattr(module, "STEP_S", 0.0)
    made = constraints(ranks, r={"choice": ["yes", "no"]})
    made.starts = {"r": len(PROMPT)}
    (found,) = made.for_batch(batch({"r": PROMPT}))
    assert (found.mask() is not None) == known


def test_masks_are_not_memory_that_a_lexer_has_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    store = GrammarStore(draw=lambda: 0.0)  # every call is measured
    monkeypatch.setattr(compiled_grammars, "_PROCESS_STORE", store)
    made = constraints(a={"choice": ["yes", "no"]})
    made.starts = {"a": len(PROMPT)}
    (row,) = made.for_batch(batch({"a": PROMPT}, k=[4]))
    # As large as those of a vocabulary of 160,000 tokens; small ones come from another heap.
    row._matcher = SimpleNamespace(compute_bitmask=lambda: bytes(20_000), is_error=lambda: False)
    masks = []
    for _ in range(200):
        masks.append(row.mask())
        row.take_time()  # a step has a limit of time, and the machine may be busy
    learned = row._use.compiled.learned.bytes
    assert learned < sum(map(len, masks)) / 10
