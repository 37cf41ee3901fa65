"""vLLM's exceptions become the seam's: a death, a refused request, or an error as it is."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from engine_adapter.config import EngineConfig
from engine_adapter.errors import EngineDead, EngineError, InvalidRequest
from engine_adapter.types import (
    ConstraintKind,
    GenerationRequest,
    SamplingOptions,
    StructuredOutput,
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
