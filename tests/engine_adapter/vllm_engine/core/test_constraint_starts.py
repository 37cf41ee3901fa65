"""Where the constraints of requests begin, and which of them draft or guide drafts."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.vllm_engine.compiled_grammars import GrammarStore
from engine_adapter.vllm_engine.mask_allowance import BURST_S
from tests.engine_adapter.vllm_engine.support.compiled import CHOICE, compiled, mask
from tests.engine_adapter.vllm_engine.support.demo_backend import demo_backend

pytestmark = pytest.mark.needs_vllm


@pytest.fixture(scope="module")
def backend() -> Any:
    return demo_backend()


def constrained(grammar: Any, *, tokens: int, reasoning_ended: bool | None = None) -> Any:
    """A request as vLLM's scheduler has it."""
    structured = SimpleNamespace(grammar=grammar, reasoning_ended=reasoning_ended)
    return SimpleNamespace(
        request_id=str(tokens), structured_output_request=structured, num_tokens=tokens
    )


def starts(requests: list[Any], *, reasoner: Any = None, in_reasoning: bool = False) -> Any:
    from engine_adapter.vllm_engine.core.constrained import constraint_starts

    manager = SimpleNamespace(reasoner_cls=reasoner, enable_in_reasoning=in_reasoning)
    return constraint_starts(manager, requests)


def test_a_constraint_begins_before_the_tokens_that_it_has_accepted(backend: Any) -> None:
    fresh, used = compiled(backend, "CHOICE", CHOICE), compiled(backend, "CHOICE", CHOICE)
    assert used.accept_tokens("r", backend.encode("yes"))
    plain = SimpleNamespace(request_id="p", structured_output_request=None, num_tokens=4)
    requests = [constrained(fresh, tokens=7), constrained(used, tokens=20), plain]
    assert starts(requests) == {"7": 7, "20": 20 - len(backend.encode("yes"))}
    used.validate_tokens(backend.encode("yes"))
    used.rollback(1)
    assert starts(requests)["20"] == 21 - len(backend.encode("yes"))


def test_another_backends_grammar_and_one_that_is_not_ready_have_no_beginning() -> None:
    assert starts([constrained(None, tokens=7), constrained(object(), tokens=8)]) == {}


def test_while_a_request_reasons_its_constraint_has_not_begun(backend: Any) -> None:
    grammar = compiled(backend, "CHOICE", CHOICE)
    for ended, known in ((None, {}), (False, {}), (True, {"9": 9})):
        request = constrained(grammar, tokens=9, reasoning_ended=ended)
        assert starts([request], reasoner=object) == known
        assert starts([request], reasoner=object, in_reasoning=True) == {"9": 9}


# -- the time that constraints take at drafts --------------------------------------------------


def test_a_grammar_that_takes_too_long_at_drafts_guides_no_more_of_them(backend: Any) -> None:
    from engine_adapter.vllm_engine.core.constrained import GrammarCompiler, count_draft_times

    compiler = GrammarCompiler(GrammarStore())
    first, equal = (compiled(backend, "CHOICE", CHOICE, compiler) for _ in range(2))
    other = compiled(backend, "CHOICE", '["yes"]', compiler)
    requests = [constrained(g, tokens=n) for n, g in enumerate((first, equal, other), start=7)]
    by_id = {request.request_id: request for request in requests}
    for _ in range(100):
        count_draft_times(by_id, {"7": (0.008, 5), "9": (0.008, 5)})
    assert starts(requests) == {"7": 7, "8": 8, "9": 9}, "these are quick"
    count_draft_times(by_id, {"7": (0.3, 5), "8": (0.3, 5), "ended": (9.0, 1)})
    assert starts(requests) == {"9": 9}
    assert first.accept_tokens("r", backend.encode("yes")), "the text continues"
    assert first.failure is None


def test_a_request_with_a_slow_grammar_gets_no_drafts_until_it_is_quick(backend: Any) -> None:
    from engine_adapter.vllm_engine.core.constrained import GrammarCompiler, slow_constraints

    compiler = GrammarCompiler(GrammarStore())
    first, equal = (compiled(backend, "CHOICE", CHOICE, compiler) for _ in range(2))
    other = compiled(backend, "CHOICE", '["yes"]', compiler)
    requests = [constrained(g, tokens=n) for n, g in enumerate((first, equal, other), start=7)]
    plain = SimpleNamespace(request_id="plain", structured_output_request=None)
    assert slow_constraints([*requests, plain]) == set()
    first._allowance.left_s = BURST_S * 0.4
    assert slow_constraints([*requests, plain]) == {"7", "8"}, "they share the grammar"
    assert first.failure is None
    first._allowance.spend(0.0, calls=100)
    assert slow_constraints(requests) == set()


def test_the_time_of_masks_is_not_that_of_drafts(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine_adapter.vllm_engine.core import constrained as module

    compiler = module.GrammarCompiler(GrammarStore())
    slow, equal = (compiled(backend, "CHOICE", CHOICE, compiler) for _ in range(2))
    slow.spend_on_drafts(10.0, 1)
    fresh = compiled(backend, "CHOICE", CHOICE, compiler)
    assert not fresh.guides_drafts
    for grammar in (slow, equal, fresh):
        grammar.fill_bitmask(mask(backend), 0)
        assert grammar.failure is None


def test_a_request_without_a_constraint_has_no_times_to_count(backend: Any) -> None:
    from engine_adapter.vllm_engine.core.constrained import count_draft_times

    grammar = compiled(backend, "CHOICE", CHOICE)
    plain = SimpleNamespace(request_id="p", structured_output_request=None)
    requests = {"p": plain, "c": constrained(grammar, tokens=3)}
    count_draft_times(requests, {"p": (10.0, 1)})
    assert grammar.guides_drafts, "the time was not its own"
    count_draft_times(requests, {"p": (10.0, 1), "c": (10.0, 1)})
    assert not grammar.guides_drafts
