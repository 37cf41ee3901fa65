"""A check of constraints in real processes, on the demo's tokenizer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine_adapter.seam.errors import InvalidRequest
from engine_adapter.seam.types import StructuredOutput
from engine_adapter.vllm_engine.gateway.constraint_checker import ConstraintChecker
from engine_adapter.vllm_engine.gateway.constraint_process import Vocabulary
from server.settings import Settings

TOKENIZER = (Path(Settings(engine="fake").model) / "tokenizer.json").read_text()
VOCABULARY = Vocabulary(TOKENIZER, 4096, 0, any_whitespace=False)
ENDLESS_S = 600.0


@asynccontextmanager
async def checking(cpu_seconds: float) -> AsyncIterator[ConstraintChecker]:
    """A checker that gives a constraint so much CPU time."""
    checker = ConstraintChecker(VOCABULARY, cpu_seconds)
    try:
        yield checker
    finally:
        await checker.stop()


async def refused(
    checker: ConstraintChecker, constraint: StructuredOutput, owner: str | None = None
) -> InvalidRequest:
    """The refusal of a constraint whose parameter is `it`."""
    with pytest.raises(InvalidRequest) as caught:
        await checker.check(constraint, owner)
    assert caught.value.param == "it"
    assert len(str(caught.value)) < 300
    return caught.value
