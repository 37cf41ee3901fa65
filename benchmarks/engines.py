"""Engines that are measured without a server, so that a difference comes from the engine alone.

Both run as in a server, with the engine core in its own process. HTTP, JSON and the gateway are
left out.
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry
from transformers import AutoTokenizer

from benchmarks.servers import ENVIRONMENT, NAME, speculative_config, vllm_arguments
from benchmarks.system import System
from benchmarks.timeline import Timeline
from benchmarks.workload import SEED, Request
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.counts import StepReport
from engine_adapter.seam.factory import create_engine
from engine_adapter.seam.types import (
    NONE,
    PLAIN,
    GenerationRequest,
    SamplingOptions,
    SpecDecodeParams,
    SpecMethod,
)

Steps = AsyncGenerator[tuple[int, float | None], None]
"""The new tokens of each step, and the tokens per decode step once they are known."""


@dataclass(frozen=True, slots=True)
class EngineSystem:
    """An engine that is measured from this process. See `System`.

    Attributes:
        tokenizer: the target's; it renders the chats.
        stream: starts a request, given its prompt's token ids and a new request id.
    """

    name: str
    tokenizer: Any
    stream: Callable[[Request, tuple[int, ...], str], Steps]

    async def send_burst(self, requests: Sequence[Request]) -> list[Timeline]:
        """See `System.send_burst`."""
        return await asyncio.gather(*(self._timeline(request) for request in requests))

    async def _timeline(self, request: Request) -> Timeline:
        prompt = self.tokenizer.apply_chat_template(
            request.messages, add_generation_prompt=True, return_dict=False
        )
        times, tokens = [], []
        per_step = 1.0 if request.proposer == NONE else None
        stream = self.stream(request, tuple(prompt), f"{self.name}-{next(_ids)}")
        async with aclosing(stream) as steps:
            async for new, reported in steps:
                per_step = reported or per_step
                if new:
                    times.append(time.perf_counter())
                    tokens.append(new)
        return Timeline(np.array(times), np.cumsum(tokens), per_step)


class EngineLauncher:
    """A `SystemLauncher` of engines without servers."""

    def __init__(self) -> None:
        os.environ.update(ENVIRONMENT)  # read when vLLM is imported, which the first start does

    @asynccontextmanager
    async def stock(self, target: str, spec: ProposerSpec | None) -> AsyncIterator[System]:
        """See `SystemLauncher.stock`."""
        from vllm import AsyncEngineArgs, AsyncLLMEngine, SamplingParams

        arguments = AsyncEngineArgs(
            model=target,
            async_scheduling=False,
            enforce_eager=True,
            speculative_config=speculative_config(spec) if spec else None,
            **vllm_arguments(),
        )
        llm = AsyncLLMEngine.from_engine_args(arguments)

        async def stream(request: Request, prompt: tuple[int, ...], request_id: str) -> Steps:
            params = SamplingParams(
                temperature=request.temperature,
                max_tokens=request.max_tokens,
                seed=SEED,
                ignore_eos=True,
            )
            params.output_kind = type(params.output_kind)["DELTA"]  # as vLLM's server sets it
            outputs = llm.generate({"prompt_token_ids": list(prompt)}, params, request_id)
            async for output in outputs:
                yield len(output.outputs[0].token_ids), None

        try:
            yield EngineSystem("stock", AutoTokenizer.from_pretrained(target), stream)
        finally:
            await asyncio.to_thread(llm.shutdown)

    @asynccontextmanager
    async def specgate(
        self, name: str, target: str, specs: Sequence[ProposerSpec]
    ) -> AsyncIterator[System]:
        """See `SystemLauncher.specgate`."""
        arguments = {**vllm_arguments(), "enforce_eager": True}
        config = EngineConfig(target, NAME, specs, None, arguments, "ERROR")
        engine = create_engine("vllm", config, CollectorRegistry(), _NullObserver())
        await engine.start(lambda line: None)
        methods = {spec.name: SpecMethod(spec.name, spec.num_speculative_tokens) for spec in specs}

        async def stream(request: Request, prompt: tuple[int, ...], request_id: str) -> Steps:
            sampling = SamplingOptions(
                temperature=request.temperature,
                max_tokens=request.max_tokens,
                seed=SEED,
                ignore_eos=True,
            )
            spec_decode = SpecDecodeParams(methods.get(request.proposer or "", PLAIN), pinned=True)
            async for delta in engine.generate(
                GenerationRequest(request_id, prompt, sampling, spec_decode)
            ):
                spec = delta.spec
                per_step = None
                if spec is not None and spec.decode_steps:
                    per_step = spec.decode_tokens / spec.decode_steps
                yield len(delta.token_ids), per_step

        try:
            yield EngineSystem(name, AutoTokenizer.from_pretrained(target), stream)
        finally:
            await engine.stop()


class _NullObserver:
    """An `EngineObserver` that ignores everything."""

    def on_step(self, report: StepReport) -> None:
        """Ignores the step."""

    def on_restart(self, succeeded: bool) -> None:
        """Ignores the restart."""


_ids = count()
