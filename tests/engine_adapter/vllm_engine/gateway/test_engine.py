"""The engine over a process with given answers: its exceptions, and the policies it outlives."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from prometheus_client import CollectorRegistry

from engine_adapter.policies.parameters import PolicyError
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.counts import StepKind, StepReport
from engine_adapter.seam.errors import EngineDead, EngineError, EngineFull, InvalidRequest
from engine_adapter.seam.types import (
    ConstraintKind,
    GenerationRequest,
    SamplingOptions,
    SpecMethod,
    StructuredOutput,
    Switch,
)
from engine_adapter.vllm_engine.gateway.engine import VllmEngine
from engine_adapter.vllm_engine.gateway.process import EngineProcess
from tests.engine_adapter.vllm_engine.support.live import Recorder

pytestmark = pytest.mark.needs_vllm

CONSTRAINT = StructuredOutput(ConstraintKind.REGEX, "a", param="it")


@dataclass
class Llm:
    """An AsyncLLM whose generator yields `outputs` and then raises `error`."""

    error: BaseException
    outputs: list[Any] = field(default_factory=list)
    errored: bool = False
    closed: bool = False

    async def generate(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        try:
            for output in self.outputs:
                yield output
            raise self.error
        finally:
            self.closed = True


@dataclass
class Calls:
    """A started engine process that records the calls of EngineCore; `error` is raised by them."""

    error: BaseException | None = None
    made: list[tuple[Any, ...]] = field(default_factory=list)
    vllm_config: Any = field(default_factory=MagicMock)

    async def call(self, *call: Any) -> None:
        if self.error is not None:
            raise self.error
        self.made.append(call)

    async def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        return []

    def has_thinking_budget(self) -> bool:
        return False

    def media_support(self) -> None:
        """The target takes no media."""


def engine_of(process: Any) -> VllmEngine:
    """An engine of one proposer whose process is `process`."""
    config = EngineConfig("m", "m", parse_specs([{"name": "ngram"}]), primary="ngram")
    engine = VllmEngine(config, CollectorRegistry(), Recorder())
    engine._supervisor = SimpleNamespace(child=process, failure=None)  # type: ignore[assignment]
    return engine


def of_policy(engine: VllmEngine, name: str) -> Any:
    """The parameters of a policy."""
    return next(info.parameters for info in engine.policies if info.name == name)


async def test_a_policy_is_changed_in_the_engine_and_then_shown() -> None:
    process = Calls()
    engine = engine_of(process)
    info = await engine.set_policy("auto", {"min_gain": 0.5})
    assert process.made == [("specgate_set_policy", "auto", {"min_gain": 0.5})]
    assert info.parameters["min_gain"] == of_policy(engine, "auto")["min_gain"] == 0.5


async def test_a_policy_that_cannot_work_never_reaches_the_engine() -> None:
    process = Calls()
    engine = engine_of(process)
    with pytest.raises(PolicyError, match=r"min_gain: must be a number in \[0.0, 1.0\]"):
        await engine.set_policy("auto", {"min_gain": 2})
    assert process.made == []


async def test_a_policy_stays_as_it_is_if_the_engine_dies() -> None:
    engine = engine_of(Calls(EngineDead("The engine process crashed.")))
    before = engine.policies
    with pytest.raises(EngineDead, match="The policy was not changed"):
        await engine.set_policy("auto", {"min_gain": 0.5})
    assert engine.policies == before


async def test_a_new_process_gets_parameters_evidence_and_then_the_switch() -> None:
    engine = engine_of(Calls())
    await engine.set_policy("load", {"disable_by_batch_size": 4})
    await engine.switch(Switch(SpecMethod("load", 5), 3), running=True)
    replacement = Calls()
    await engine._adopt(replacement)  # type: ignore[arg-type]
    assert [name for name, *_ in replacement.made] == ["specgate_switch"], "nothing is measured yet"
    evidence = {"steps": 7, "policies": {"load": {"level": "light"}}}
    engine._on_step(StepReport(StepKind.DECODE, 0.1, {}, {}, {}, {}, evidence=evidence))
    assert engine.evidence == evidence
    replacement = Calls()
    await engine._adopt(replacement)  # type: ignore[arg-type]
    assert replacement.made == [
        ("specgate_restore_evidence", evidence),
        ("specgate_switch", "load", 5, 3),
    ]
    config = engine._new_process()._config
    assert (config.policies, config.primary) == ({"load": {"disable_by_batch_size": 4}}, "ngram")


def output(finish_reason: str | None = None) -> Any:
    choice = SimpleNamespace(
        text="x", token_ids=[1], logprobs=None, finish_reason=finish_reason, stop_reason=None
    )
    return SimpleNamespace(
        outputs=[choice], prompt_logprobs=None, num_cached_tokens=0, kv_transfer_params=None
    )


async def failure(llm: Llm, constraint: StructuredOutput | None = None) -> BaseException:
    """The exception of a generation, from an engine that reports that its process is replaced."""
    config = EngineConfig("m", "m")
    engine = VllmEngine(config, CollectorRegistry(), Recorder())
    process = EngineProcess(config, 5, engine._metrics)
    process._llm = llm
    dead = EngineDead("The engine process crashed; it is being replaced.", 2.5)
    engine._supervisor = SimpleNamespace(child=process, failure=dead)  # type: ignore[assignment]
    request = GenerationRequest("r", (1,), SamplingOptions(structured_output=constraint))
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        async for _ in engine.generate(request):
            pass
    assert llm.closed
    return caught.value


def errors(name: str) -> Any:
    from engine_adapter.vllm_engine import compat

    return getattr(compat, name)


@pytest.mark.parametrize("outputs", [[], [output()]])
async def test_a_death_is_raised_with_its_cause_and_consequence(outputs: list[Any]) -> None:
    from_engine = Llm(errors("EngineDeadError")(), outputs)
    while_sending = Llm(asyncio.CancelledError(), outputs)
    recoverable = Llm(errors("EngineGenerateError")("lost"), outputs, errored=True)
    stopping = Llm(AssertionError("not reached"), [*outputs, output("abort")])
    for llm in (from_engine, while_sending, recoverable, stopping):
        error = await failure(llm)
        assert isinstance(error, EngineDead)
        assert str(error) == (
            "The engine process crashed; it is being replaced. This request is lost."
        )
        assert error.retry_after_s == 2.5


async def test_an_error_of_a_live_engine_is_not_a_death() -> None:
    error = errors("EngineGenerateError")("oops")
    assert await failure(Llm(error)) is error


async def test_a_cancelled_request_stays_cancelled() -> None:
    llm = Llm(AssertionError("not reached"))
    running = asyncio.Event()

    async def wait(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        running.set()
        try:
            await asyncio.Event().wait()
            yield
        finally:
            llm.closed = True

    llm.generate = wait  # type: ignore[method-assign]
    task = asyncio.create_task(failure(llm))
    await running.wait()
    task.cancel()
    assert isinstance(await task, asyncio.CancelledError)


async def test_a_refusal_before_the_first_output_is_an_invalid_request() -> None:
    for error in (ValueError("bad"), errors("VLLMClientError")("bad")):
        refused = await failure(Llm(error), CONSTRAINT)
        assert isinstance(refused, InvalidRequest)
        assert (refused.param, str(refused)) == ("it", "it: bad")
        late = Llm(error, [output()])
        assert await failure(late, CONSTRAINT) is error


async def test_a_failed_grammar_is_an_invalid_request() -> None:
    failed = [output("error")]
    refused = await failure(Llm(AssertionError(), failed), CONSTRAINT)
    assert isinstance(refused, InvalidRequest)
    unconstrained = await failure(Llm(AssertionError(), failed))
    assert type(unconstrained) is EngineError
    late = await failure(Llm(AssertionError(), [output(), *failed]), CONSTRAINT)
    assert type(late) is EngineError


async def test_an_engine_without_room_for_a_constraint_says_so_and_blames_no_field() -> None:
    full = EngineFull("the formats of running requests take all memory for formats")
    constraint = StructuredOutput(ConstraintKind.REGEX, "a", param="it")
    assert await failure(Llm(full), constraint) is full
