"""The check of constraints in real processes, on the demo's tokenizer."""

import asyncio
import json
import signal
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from engine_adapter.seam.errors import (
    CONSTRAINT_TOO_COMPLEX,
    EngineError,
    EngineStartError,
)
from engine_adapter.seam.types import ConstraintKind, StructuredOutput
from engine_adapter.vllm_engine.gateway import (
    constraint_checker,
    constraint_process,
    constraint_worker,
)
from engine_adapter.vllm_engine.gateway.constraint_checker import (
    ConstraintChecker,
)
from engine_adapter.vllm_engine.gateway.constraint_process import (
    Answer,
    CompileLimits,
    ConstraintProcess,
    Vocabulary,
)
from server.schema.bounds import MAX_NESTING
from tests.engine_adapter.vllm_engine.gateway.constraint_checks import (
    ENDLESS_S,
    VOCABULARY,
    checking,
    refused,
)
from tests.server.hostile.forms import rules

pytestmark = pytest.mark.needs_vllm  # llguidance comes with it

SLOW = StructuredOutput(ConstraintKind.GRAMMAR, rules(20_000), param="it")


def regex(pattern: str) -> StructuredOutput:
    return StructuredOutput(ConstraintKind.REGEX, pattern, param="it")


@pytest.fixture
async def checker() -> AsyncIterator[ConstraintChecker]:
    """A checker that gives a constraint a fifth of a second."""
    async with checking(0.2) as made:
        yield made


@pytest.fixture
async def patient() -> AsyncIterator[ConstraintChecker]:
    """A checker that would compile for minutes."""
    async with checking(ENDLESS_S) as made:
        yield made


async def compiling(checker: ConstraintChecker) -> None:
    """Waits until the process that `start` has made compiles a constraint."""
    async with asyncio.timeout(60):
        while checker._idle:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (ConstraintKind.JSON_OBJECT, ""),
        (ConstraintKind.JSON_SCHEMA, '{"type": "object", "properties": {"a": {"minimum": 5}}}'),
        (ConstraintKind.REGEX, "[a-z]{1,20}é"),
        (ConstraintKind.GRAMMAR, 'root ::= "a" root | "b"'),
        (ConstraintKind.GRAMMAR, 'start: "a" start | "b"'),
    ],
)
async def test_an_ordinary_constraint_passes(
    checker: ConstraintChecker, kind: ConstraintKind, value: str
) -> None:
    await checker.check(StructuredOutput(kind, value))


async def test_choices_pass(checker: ConstraintChecker) -> None:
    choices = ("yes", 'no "or"\n', "vielleicht ü")
    await checker.check(StructuredOutput(ConstraintKind.CHOICE, choices=choices))


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (regex("(a"), "Grammar error: "),
        (StructuredOutput(ConstraintKind.GRAMMAR, "none", param="it"), "Invalid grammar spec"),
        (StructuredOutput(ConstraintKind.JSON_SCHEMA, '{"type": "a"}', param="it"), "type: a"),
        (StructuredOutput(ConstraintKind.JSON_SCHEMA, '{"not": {}}', param="it"), "not"),
    ],
)
async def test_one_that_is_wrong_is_refused_with_the_reason(
    checker: ConstraintChecker, constraint: StructuredOutput, reason: str
) -> None:
    for _ in range(2):
        error = await refused(checker, constraint)
        assert str(error).startswith("it: ")
        assert reason in str(error)
        assert error.code is None


async def test_one_that_takes_too_long_is_given_up_and_the_next_is_checked(
    checker: ConstraintChecker,
) -> None:
    error = await refused(checker, SLOW)
    assert error.code == CONSTRAINT_TOO_COMPLEX
    assert "0.2 s of CPU time" in str(error)
    await checker.check(regex("a+"))


async def test_one_that_takes_too_much_memory_is_given_up(
    patient: ConstraintChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patient, "_limits", replace(patient._limits, memory_bytes=64 << 20))
    schema = '{"type": "array", "minItems": 100000000}'
    error = await refused(patient, StructuredOutput(ConstraintKind.JSON_SCHEMA, schema, param="it"))
    assert error.code == CONSTRAINT_TOO_COMPLEX
    assert "64 MiB of memory" in str(error)
    await patient.check(regex("a"))


async def test_a_schema_may_be_nested_as_deeply_as_a_body_may(patient: ConstraintChecker) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range((MAX_NESTING - 1) // 2):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    await patient.check(StructuredOutput(ConstraintKind.JSON_SCHEMA, json.dumps(schema)))


async def test_the_tokenizer_is_encoded_once(
    patient: ConstraintChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    original = constraint_process.setup_frame

    def setup_frame(vocabulary: Vocabulary, limits: CompileLimits) -> bytes:
        encoded.append(threading.get_ident())
        return original(vocabulary, limits)

    monkeypatch.setattr(constraint_checker, "setup_frame", setup_frame)
    await patient.start()
    await patient.start()
    (thread,) = encoded
    assert thread != threading.get_ident(), "not on the event loop"


def test_an_error_of_the_compiler_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def compile(self, kind: ConstraintKind, value: str) -> tuple[str | None, int]:
            raise MemoryError if value == "large" else RecursionError("deep")

    class AbortedError(Exception):
        pass

    def abort() -> None:
        raise AbortedError

    monkeypatch.setattr("os.abort", abort)
    reason = constraint_worker.compiled(Failing(), ConstraintKind.REGEX, "a")
    assert reason == ("it cannot be compiled: RecursionError: deep", 0)
    with pytest.raises(AbortedError):
        constraint_worker.compiled(Failing(), ConstraintKind.REGEX, "large")


async def test_equal_constraints_are_compiled_once(
    checker: ConstraintChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[StructuredOutput] = []
    original = ConstraintProcess.compile

    async def compile(self: ConstraintProcess, constraint: StructuredOutput) -> Answer | None:
        compiled.append(constraint)
        return await original(self, constraint)

    monkeypatch.setattr(ConstraintProcess, "compile", compile)
    await asyncio.gather(*(checker.check(regex("a|b")) for _ in range(50)))
    await checker.check(regex("a|b"))
    assert compiled == [regex("a|b")]
    await checker.check(regex("a|c"))
    assert len(compiled) == 2


async def test_slow_constraints_of_one_owner_do_not_hold_up_anothers(
    patient: ConstraintChecker,
) -> None:
    slow = [
        asyncio.create_task(patient.check(replace(SLOW, value=f"{SLOW.value}# {i}"), "a"))
        for i in range(12)
    ]
    async with asyncio.timeout(120):
        for i in range(5):
            await patient.check(regex(f"a{i}"), "b")
    # In order, the five would have waited for all of them.
    assert not any(task.done() for task in slow)
    for task in slow:
        task.cancel()
    await asyncio.wait(slow)


async def test_constraints_that_read_alike_are_not_equal(checker: ConstraintChecker) -> None:
    await checker.check(StructuredOutput(ConstraintKind.CHOICE, choices=("a", "b(")))
    await refused(checker, regex("ab("))
    await checker.check(StructuredOutput(ConstraintKind.CHOICE, choices=("ab(",), param="it"))


async def test_a_client_that_leaves_ends_the_process_unless_another_waits(
    patient: ConstraintChecker,
) -> None:
    await patient.start()
    process = patient._idle[0]._process
    first = asyncio.create_task(patient.check(SLOW))
    second = asyncio.create_task(patient.check(SLOW))
    await compiling(patient)
    first.cancel()
    await asyncio.wait([first])
    assert process.returncode is None, "the second one still waits"
    second.cancel()
    await asyncio.wait([second])
    assert await asyncio.wait_for(process.wait(), 60) == -9
    await patient.check(regex("a"))


async def test_one_that_comes_while_another_is_given_up_is_checked_again(
    patient: ConstraintChecker,
) -> None:
    first = asyncio.create_task(patient.check(SLOW))
    await asyncio.sleep(0.05)
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.create_task(patient.check(SLOW))
    done, _ = await asyncio.wait([second], timeout=0.2)
    assert not done, "it must not inherit the end of the first"
    second.cancel()
    await asyncio.wait([second])


async def test_a_slow_constraint_does_not_hold_up_the_others(patient: ConstraintChecker) -> None:
    slow = asyncio.create_task(patient.check(SLOW))
    await asyncio.sleep(0.05)
    for i in range(5):
        await patient.check(regex(f"a{i}"))
    assert not slow.done()
    slow.cancel()
    await asyncio.wait([slow])


async def test_old_verdicts_are_forgotten(
    checker: ConstraintChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constraint_checker, "MAX_VERDICTS", 3)
    for i in range(6):
        await checker.check(regex(f"a{i}"))
    assert len(checker._verdicts) == 3


async def test_a_process_that_something_else_ends_is_an_error_and_is_replaced(
    patient: ConstraintChecker,
) -> None:
    await patient.start()
    process = patient._idle[0]._process
    slow = asyncio.create_task(patient.check(SLOW))
    await compiling(patient)
    process.terminate()
    with pytest.raises(EngineError, match="status -15"):
        await slow
    await patient.check(regex("a"))


async def test_a_check_on_a_machine_without_cpu_time_for_it_continues(
    patient: ConstraintChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await patient.start()
    process = patient._idle[0]._process
    process.send_signal(signal.SIGSTOP)
    checking = asyncio.create_task(patient.check(regex("a+")))
    await compiling(patient)
    loop = asyncio.get_running_loop()
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + 1000.0)
    await asyncio.sleep(0.1)
    assert not checking.done(), "the limit is of CPU time"
    process.send_signal(signal.SIGCONT)
    await checking


async def test_a_first_process_that_is_not_ready_in_time_is_an_error_of_the_start(
    checker: ConstraintChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constraint_checker, "START_TIMEOUT_S", 0.001)
    with pytest.raises(EngineStartError, match="not ready in"):
        await checker.start()


async def test_a_tokenizer_that_cannot_be_read_is_an_error_of_the_start() -> None:
    made = ConstraintChecker(Vocabulary("{}", 4096, 0, any_whitespace=False), 1.0)
    with pytest.raises(EngineError, match="did not start"):
        await made.start()


async def test_the_check_reads_a_schema_as_the_engine_does() -> None:
    # With no other properties than those named, no object has the property that it must have.
    schema = '{"type": "object", "properties": {}, "required": ["a"]}'
    constraint = StructuredOutput(ConstraintKind.JSON_SCHEMA, schema, param="it")
    for named_properties in (False, True):
        made = ConstraintChecker(replace(VOCABULARY, named_properties=named_properties), 1.0)
        if named_properties:
            assert "required" in str(await refused(made, constraint))
        else:
            await made.check(constraint)
        await made.stop()


async def test_the_size_of_a_compiled_constraint_is_known_after_its_check(
    patient: ConstraintChecker,
) -> None:
    small, large = regex("[a-z]+"), regex("some text " * 1500)
    assert patient.size_of(small) is None
    for constraint in (small, large, small):
        await patient.check(constraint)
    assert 1000 < (patient.size_of(small) or 0) < 2**20
    measured = patient.size_of(large) or 0
    assert 5 * 2**20 < measured < 20 * 2**20
    for i in range(5):
        other = regex("text" * 3750 + str(i))
        await patient.check(other)
        assert patient.size_of(other) == pytest.approx(measured, rel=0.3), "whatever came before"


async def test_one_that_takes_more_than_a_quarter_of_the_budget_is_refused() -> None:
    checker = ConstraintChecker(VOCABULARY, ENDLESS_S, 20 * 2**20)
    try:
        error = await refused(checker, regex("some text " * 1500))
        assert error.code == CONSTRAINT_TOO_COMPLEX
        assert str(error).startswith("it: takes ")
        assert "MiB of memory when it is compiled; the most is 5.0 MiB" in str(error)
        await checker.check(regex("some text"))
    finally:
        await checker.stop()
