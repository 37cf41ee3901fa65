"""The engine: `Engine` over vLLM's AsyncLLM, which never leaves this file."""

import asyncio
import gc
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from engine_adapter.errors import (
    EngineConfigError,
    EngineDead,
    EngineNotReady,
    EngineStartError,
)
from engine_adapter.factory import EngineConfig
from engine_adapter.interface import (
    Delta,
    EngineInfo,
    EngineObserver,
    GenerationRequest,
    ProposerInfo,
    SpecMethod,
    StepReport,
)
from engine_adapter.vllm_engine import arguments, preflight
from engine_adapter.vllm_engine.progress import progress_pipe
from engine_adapter.vllm_engine.translation import refused, sampling_params, to_delta

_LATENCY_WINDOW = 256


class VllmEngine:
    """vLLM with the configured proposers. See `engine_adapter.interface.Engine`.

    Args:
        config: model, proposers and vLLM's arguments.
        registry: gets the `vllm:` metrics.
        observer: gets every step's report.
    """

    def __init__(
        self, config: EngineConfig, registry: CollectorRegistry, observer: EngineObserver
    ) -> None:
        self._config = config
        self._registry = registry
        self._observer = observer
        self._llm: Any = None
        self._info: EngineInfo | None = None
        # Name -> (seconds, tokens) of the last steps in which the proposer drafted.
        self._latency: dict[str, deque[tuple[float, int]]] = defaultdict(
            lambda: deque(maxlen=_LATENCY_WINDOW)
        )

    @property
    def info(self) -> EngineInfo:
        """See `Engine.info`."""
        if self._info is None:
            raise EngineNotReady("the engine has not started yet")
        return self._info

    @property
    def failure(self) -> BaseException | None:
        """See `Engine.failure`."""
        if self._llm is None or not self._llm.errored:
            return None
        error: BaseException = self._llm.dead_error
        return error

    async def start(self, on_progress: Callable[[str], None]) -> None:
        """See `Engine.start`."""
        version = preflight.check_libraries()
        capacity = preflight.draft_capacity(self._config)
        arguments.prepare_environment(self._config)
        on_progress("checking models")
        await asyncio.to_thread(preflight.check_models, self._config)
        on_progress(f"starting vLLM {version}: V1 model runner, async scheduling off")
        async with progress_pipe(on_progress) as pipe:
            await asyncio.to_thread(self._load, capacity, pipe)
        held = await self._llm.collective_rpc("specgate_memory")
        self._info = self._describe(version, capacity, held)

    def _load(self, capacity: int, pipe: str) -> None:
        # Sets `_llm` and returns nothing: a thread's result outlives it, and vLLM's finalizer
        # fails if it first runs when the interpreter is half gone.
        from engine_adapter.vllm_engine import compat
        from engine_adapter.vllm_engine.metrics import stat_logger

        try:
            args = arguments.engine_args(self._config, capacity, pipe)
            vllm_config = args.create_engine_config()
        except EngineConfigError:
            raise
        except Exception as error:  # vLLM raises anything for a bad argument
            raise EngineConfigError("engine_args", str(error)) from error
        try:
            self._llm = compat.AsyncLLM.from_vllm_config(
                vllm_config, stat_loggers=[stat_logger(self._registry, self._on_step)]
            )
        except Exception as error:  # whatever ended the engine process; its log has the cause
            raise EngineStartError(f"vLLM did not start: {error}") from error

    def _describe(
        self, version: str, capacity: int, held: list[Mapping[str, tuple[int, int]]]
    ) -> EngineInfo:
        config = self._llm.vllm_config
        proposers = []
        for spec in self._config.proposers:
            of_ranks = [rank[spec.name] for rank in held if spec.name in rank]
            proposers.append(
                ProposerInfo(
                    name=spec.name,
                    method=spec.method,
                    model=spec.model,
                    num_speculative_tokens=spec.num_speculative_tokens,
                    tensor_parallel_size=len(of_ranks) or 1,
                    weights_bytes=sum(weights for weights, _ in of_ranks),
                    kv_bytes=sum(kv for _, kv in of_ranks),
                )
            )
        return EngineInfo(
            engine="vllm",
            version=version,
            model=self._config.model,
            tokenizer=config.model_config.tokenizer,
            max_model_len=config.model_config.max_model_len,
            vocab_size=config.model_config.get_vocab_size(),
            max_logprobs=config.model_config.max_logprobs,
            max_speculative_tokens=capacity,
            proposers=tuple(proposers),
        )

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """See `Engine.generate`."""
        from engine_adapter.vllm_engine import compat

        llm = self._require()
        params = sampling_params(request)
        prompt = {"prompt_token_ids": list(request.prompt_token_ids)}
        outputs = llm.generate(prompt, params, request.request_id)
        admitted = False
        try:
            async for output in outputs:
                admitted = True
                yield to_delta(output)
        except compat.EngineDeadError as error:
            raise EngineDead(f"the engine died: {error}") from error
        except (ValueError, compat.VLLMClientError) as error:
            if admitted:
                raise
            raise refused(error) from error
        finally:
            await outputs.aclose()

    async def switch(self, method: SpecMethod, generation: int, *, running: bool) -> None:
        """See `Engine.switch`. New requests bring their method; only running ones need telling."""
        from engine_adapter.vllm_engine import compat

        llm = self._require()
        if not running:
            return
        try:
            await llm.engine_core.call_utility_async(
                "specgate_switch", method.proposer, method.num_speculative_tokens, generation
            )
        except compat.EngineDeadError as error:
            raise EngineDead(f"the engine died: {error}") from error

    async def proposers(self) -> tuple[ProposerInfo, ...]:
        """See `Engine.proposers`."""
        return tuple(
            replace(info, draft_latency_ms=self._draft_latency_ms(info.name))
            for info in self.info.proposers
        )

    async def stop(self) -> None:
        """See `Engine.stop`."""
        llm, self._llm = self._llm, None
        if llm is None:
            return
        if handler := llm.output_handler:
            # Still reading, it would report the engine's end as an error.
            handler.cancel()
            await asyncio.gather(handler, return_exceptions=True)
        await asyncio.to_thread(llm.shutdown)
        del llm, handler
        gc.collect()

    def _require(self) -> Any:
        if self._llm is None:
            raise EngineNotReady("the engine is not running")
        if self._llm.errored:
            raise EngineDead(f"the engine died: {self._llm.dead_error}")
        return self._llm

    def _on_step(self, report: StepReport, drafted: Mapping[str, int]) -> None:
        for name, seconds in report.draft_seconds.items():
            self._latency[name].append((seconds, drafted.get(name, 0)))
        self._observer.on_step(report)

    def _draft_latency_ms(self, name: str) -> float | None:
        steps = self._latency[name]
        tokens = sum(count for _, count in steps)
        return 1e3 * sum(seconds for seconds, _ in steps) / tokens if tokens else None
