"""How vLLM's backend `guidance` compiles a grammar."""

from typing import Any, Protocol

from engine_adapter.vllm_engine import compat


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
