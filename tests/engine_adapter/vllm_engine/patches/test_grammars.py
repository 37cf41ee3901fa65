"""A panic of what compiles grammars ends its request, and not EngineCore."""

import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.seam.types import SpecDecodeParams
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.compiled_grammars import GrammarStore
from engine_adapter.vllm_engine.patches.grammars import patch_grammar_compiler
from engine_adapter.vllm_engine.wire import to_extra_args

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
    manager.backend, manager.backend_name = Panicking(), "panicking"
    manager._use_async_grammar_compilation = True
    asked = compat.StructuredOutputsParams(json=PANICS)
    asked._backend = manager.backend_name
    request = SimpleNamespace(
        request_id="r",
        structured_output_request=StructuredOutputRequest(params=asked),
        sampling_params=SimpleNamespace(structured_outputs=asked, all_stop_token_ids=()),
    )
    with ThreadPoolExecutor(1) as manager.executor:
        manager.grammar_init(request)
    return request


def test_a_panic_is_the_reason_why_a_request_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine_adapter.vllm_engine.core.constrained import GrammarCompiler, failure_of

    manager = compat.StructuredOutputManager
    monkeypatch.setattr(manager, "_create_grammar", manager._create_grammar)
    before = submitted().structured_output_request
    with pytest.raises(BaseException, match="char boundary") as panic:
        # The scheduler reads it so, in EngineCore's loop; if nothing is raised, the patch can go.
        _ = before.grammar
    assert not isinstance(panic.value, Exception)
    patch_grammar_compiler(GrammarCompiler(GrammarStore()))
    request = submitted()
    assert isinstance(request.structured_output_request.grammar, ValueError)
    assert failure_of(request) == str(panic.value)


def test_the_compiler_gets_the_size_that_the_gateway_has_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.v1.structured_output.request import StructuredOutputRequest

    calls: list[Any] = []

    class Recording:
        def compile(self, *args: Any) -> str:
            calls.append(args)
            return "compiled"

    manager = compat.StructuredOutputManager
    monkeypatch.setattr(manager, "_create_grammar", manager._create_grammar)
    patch_grammar_compiler(Recording())
    backend = object.__new__(compat.GuidanceBackend)
    params = compat.StructuredOutputsParams(regex="a+")
    request = SimpleNamespace(
        structured_output_request=StructuredOutputRequest(params=params),
        sampling_params=SimpleNamespace(extra_args=to_extra_args(SpecDecodeParams(), 7000)),
    )
    made = manager._create_grammar(SimpleNamespace(backend=backend), request)
    assert made == "compiled"
    ((given, kind, spec, size),) = calls
    assert given is backend
    assert (kind.name, spec, size) == ("REGEX", "a+", 7000)
