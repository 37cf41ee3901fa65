"""How vLLM compiles grammars."""

from typing import Any, Protocol

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.panics import panics_as_errors


class Compiler(Protocol):
    """What compiles in place of vLLM: `core.constrained.GrammarCompiler`."""

    def compile(self, backend: Any, request_type: Any, grammar_spec: str) -> Any:
        """The matcher of a new sequence."""


def patch_grammar_compiler(compiler: Compiler) -> None:
    """Lets every `GuidanceBackend` compile with `compiler`."""

    def compile_grammar(
        backend: Any, request_type: Any, grammar_spec: str, stop_token_ids: Any = None
    ) -> Any:
        return compiler.compile(backend, request_type, grammar_spec)

    compat.GuidanceBackend.compile_grammar = compile_grammar


def patch_compiler_panics() -> None:
    """Lets a panic in the compilation of a grammar, by any backend, end its request alone.

    vLLM keeps each exception of a compilation, and raises one that is not an `Exception` in the
    scheduler, which ends EngineCore.
    """
    create = compat.StructuredOutputManager._create_grammar

    def create_grammar(manager: Any, request: Any) -> Any:
        with panics_as_errors():
            return create(manager, request)

    compat.StructuredOutputManager._create_grammar = create_grammar
