"""How vLLM compiles grammars."""

from typing import Any, Protocol

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.panics import panics_as_errors
from engine_adapter.vllm_engine.wire import grammar_bytes_of


class Compiler(Protocol):
    """What compiles in place of vLLM: `core.constrained.GrammarCompiler`."""

    def compile(
        self, backend: Any, request_type: Any, grammar_spec: str, size: int | None = None
    ) -> Any:
        """The matcher of a new sequence."""


def patch_grammar_compiler(compiler: Compiler) -> None:
    """Lets `compiler` compile what is for a `GuidanceBackend`, and ends panics of any backend.

    vLLM keeps each exception of a compilation, and raises one that is not an `Exception` in the
    scheduler, which ends EngineCore. With the patch a panic ends its request alone.
    """
    create = compat.StructuredOutputManager._create_grammar

    def create_grammar(manager: Any, request: Any) -> Any:
        with panics_as_errors():
            if not isinstance(manager.backend, compat.GuidanceBackend):
                return create(manager, request)
            kind, spec = request.structured_output_request.structured_output_key
            return compiler.compile(
                manager.backend, kind, spec, grammar_bytes_of(request.sampling_params)
            )

    compat.StructuredOutputManager._create_grammar = create_grammar
