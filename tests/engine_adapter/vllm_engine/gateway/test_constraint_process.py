"""What the process that checks constraints is told of the engine."""

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs
from transformers import AutoTokenizer

from engine_adapter.seam.types import ConstraintKind
from engine_adapter.vllm_engine.gateway import constraint_worker
from engine_adapter.vllm_engine.gateway.constraint_process import Vocabulary
from server.settings import Settings

pytestmark = pytest.mark.needs_vllm  # llguidance comes with it


@pytest.mark.parametrize("backend", ["guidance", "xgrammar", "outlines"])
@pytest.mark.parametrize("is_fast", [True, False])
def test_an_engine_whose_constraints_are_not_bounded_says_so(backend: str, is_fast: bool) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(Settings(engine="fake").model)
    structured = SimpleNamespace(
        backend=backend, disable_any_whitespace=True, disable_additional_properties=True
    )
    model = SimpleNamespace(get_vocab_size=lambda: 4096)
    config = SimpleNamespace(structured_outputs_config=structured, model_config=model)
    with capture_logs() as logs:
        made = Vocabulary.from_tokenizer(config, tokenizer if is_fast else object())
    if backend == "guidance" and is_fast:
        assert made is not None
        assert (made.any_whitespace, made.named_properties, made.vocab_size) == (False, True, 4096)
        assert logs == []
    else:
        assert made is None
        (line,) = logs
        assert (line["event"], line["backend"]) == ("formats_have_no_limits", backend)


def test_a_panic_of_the_compiler_is_a_reason() -> None:
    class PanicException(BaseException):
        """As PyO3 names a panic in Rust."""

    class Panics:
        def compile(self, kind: ConstraintKind, value: str) -> tuple[str | None, int]:
            raise PanicException("index out of bounds")

    reason, _ = constraint_worker.compiled(Panics(), ConstraintKind.JSON_SCHEMA, "{}")
    assert reason == "it cannot be compiled: CompilerPanic: index out of bounds"
