"""A panic of what compiles grammars ends its request, and not EngineCore."""

import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.grammars import patch_compiler_panics

pytestmark = pytest.mark.needs_vllm

PANICS = json.dumps({"type": "object", "required": "é" * 200})
"""A schema whose check panics in llguidance 1.7."""


class Panicking:
    """A backend that panics, as its library does."""

    def compile_grammar(self, kind: Any, spec: str, stop_token_ids: Any = None) -> Any:
        import llguidance

        matcher = llguidance.LLMatcher
        return matcher.validate_grammar(matcher.grammar_from_json_schema(spec, {}), None)


def submitted() -> Any:
    """A request whose grammar vLLM's manager has tried to compile, in a thread as it does."""
    from vllm.v1.structured_output.request import StructuredOutputRequest

    manager = object.__new__(compat.StructuredOutputManager)
    manager.backend = Panicking()
    manager._use_async_grammar_compilation = True
    constrained = StructuredOutputRequest(params=compat.StructuredOutputsParams(json=PANICS))
    request = SimpleNamespace(
        request_id="r", structured_output_request=constrained, sampling_params=None
    )
    with ThreadPoolExecutor(1) as manager.executor:
        manager.grammar_init(request)
    return request


def test_a_panic_is_the_reason_why_a_request_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine_adapter.vllm_engine.core.constrained import failure_of

    manager = compat.StructuredOutputManager
    monkeypatch.setattr(manager, "_create_grammar", manager._create_grammar)
    before = submitted().structured_output_request
    with pytest.raises(BaseException, match="char boundary") as panic:
        # The scheduler reads it so, in EngineCore's loop; if nothing is raised, the patch can go.
        _ = before.grammar
    assert not isinstance(panic.value, Exception)
    patch_compiler_panics()
    request = submitted()
    assert isinstance(request.structured_output_request.grammar, ValueError)
    assert failure_of(request) == str(panic.value)
