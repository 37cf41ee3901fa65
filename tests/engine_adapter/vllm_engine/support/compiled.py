"""Matchers of constraints on the demo's vocabulary."""

from typing import Any

from engine_adapter.vllm_engine.compiled_grammars import GrammarStore

CHOICE = '["yes", "no"]'


def compiled(backend: Any, option: str, spec: str, compiler: Any = None) -> Any:
    """A matcher as EngineCore has it; `option`: the kind of its format, with this `spec`."""
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    from engine_adapter.vllm_engine.core.constrained import GrammarCompiler

    compiler = compiler or GrammarCompiler(GrammarStore())
    return compiler.compile(backend, StructuredOutputOptions[option], spec)


def mask(backend: Any) -> Any:
    """An empty mask of the backend's vocabulary."""
    import llguidance.torch

    return llguidance.torch.allocate_token_bitmask(1, backend.ll_tokenizer.vocab_size)
