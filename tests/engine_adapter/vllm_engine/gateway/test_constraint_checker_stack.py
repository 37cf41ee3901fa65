"""The stack that compiling a constraint takes."""

import json
import resource
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine_adapter.seam.errors import CONSTRAINT_TOO_COMPLEX
from engine_adapter.seam.types import ConstraintKind, StructuredOutput
from engine_adapter.vllm_engine.gateway.constraint_checker import (
    STACK_BYTES,
    ConstraintChecker,
    stack_bytes,
)
from tests.engine_adapter.vllm_engine.gateway.constraint_checks import (
    ENDLESS_S,
    checking,
    refused,
)

pytestmark = pytest.mark.needs_vllm  # llguidance comes with it


@pytest.fixture
async def patient() -> AsyncIterator[ConstraintChecker]:
    """A checker that would compile for minutes."""
    async with checking(ENDLESS_S) as made:
        yield made


def chained(count: int) -> StructuredOutput:
    """A schema whose definitions refer from one to the next."""
    defs: dict[str, Any] = {
        f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"type": "integer"}]}
        for i in range(count)
    }
    schema = {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{count}": {"type": "string"}}}
    return StructuredOutput(ConstraintKind.JSON_SCHEMA, json.dumps(schema), param="it")


async def test_one_that_would_overflow_a_stack_of_the_engine_is_given_up(
    patient: ConstraintChecker,
) -> None:
    # Some 1,000 fit into 8 MiB, which a thread has as a rule, and some 250 into 2 MiB.
    error = await refused(patient, chained(500))
    assert error.code == CONSTRAINT_TOO_COMPLEX
    assert "1024 KiB of stack or 512 MiB of memory" in str(error), "either ends it with SIGSEGV"
    await patient.check(chained(50))


@pytest.mark.parametrize(
    ("soft", "stack"),
    [(resource.RLIM_INFINITY, STACK_BYTES), (8 << 20, STACK_BYTES), (1 << 20, 1 << 19)],
)
def test_compiling_has_less_stack_than_a_thread_of_the_engine(
    monkeypatch: pytest.MonkeyPatch, soft: int, stack: int
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (soft, resource.RLIM_INFINITY))
    assert stack_bytes() == stack


async def test_where_threads_have_little_stack_compiling_has_less_and_the_refusal_says_how_much(
    monkeypatch: pytest.MonkeyPatch, patient: ConstraintChecker
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (512 << 10, resource.RLIM_INFINITY))
    async with checking(ENDLESS_S) as checker:
        error = await refused(checker, chained(60))
        assert "256 KiB of stack or 512 MiB of memory" in str(error)
        await checker.check(chained(5))
    await patient.check(chained(60))
