"""The engine: `Engine` over vLLM, one process of it after the other."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from engine_adapter.errors import EngineDead, EngineError, EngineNotReady
from engine_adapter.factory import EngineConfig
from engine_adapter.interface import (
    Delta,
    EngineInfo,
    EngineObserver,
    GenerationRequest,
    LoraAdapter,
    ProposerInfo,
    SpecMethod,
    StepReport,
)
from engine_adapter.lora_registry import Adapters
from engine_adapter.proposer_registry import Roster
from engine_adapter.proposers.contract import TargetSizes
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway import arguments, lora, preflight
from engine_adapter.vllm_engine.gateway.hot_load import ProposerLoader
from engine_adapter.vllm_engine.gateway.process import EngineProcess
from engine_adapter.vllm_engine.gateway.stat_logger import VllmMetrics
from engine_adapter.vllm_engine.gateway.supervisor import Supervisor
from engine_adapter.vllm_engine.gateway.translation import (
    lora_request,
    refused,
    sampling_params,
    to_delta,
)


class VllmEngine:
    """vLLM with the configured proposers. See `engine_adapter.interface.Engine`.

    A process that dies is replaced as `config.restart` says; what the engine must be brought
    to again then is in `_adopt`.

    Args:
        config: model, proposers and vLLM's arguments.
        registry: gets the `vllm:` metrics.
        observer: gets every step's report, and hears of replacements.
    """

    def __init__(
        self, config: EngineConfig, registry: CollectorRegistry, observer: EngineObserver
    ) -> None:
        self._config = config
        self._observer = observer
        self._metrics = VllmMetrics(registry, self._on_step)
        self._supervisor = Supervisor(
            self._new_process, self._adopt, config.restart, observer.on_restart
        )
        self._version = ""
        self._capacity = 0
        self._info: EngineInfo | None = None
        # The last switch that reached running requests: proposer, k, generation.
        self._sweep: tuple[str, int, int] | None = None
        self._roster = Roster(config.proposers)
        self._adapters = Adapters(config.arguments)

    @property
    def info(self) -> EngineInfo:
        """See `Engine.info`."""
        if self._info is None:
            raise EngineNotReady("the engine has not started yet")
        return replace(self._info, proposers=self._roster.infos)

    @property
    def failure(self) -> EngineDead | None:
        """See `Engine.failure`."""
        return self._supervisor.failure

    async def start(self, on_progress: Callable[[str], None]) -> None:
        """See `Engine.start`."""
        self._version = preflight.check_libraries()
        self._capacity = preflight.draft_capacity(self._config)
        arguments.prepare_environment(self._config)
        on_progress("checking models")
        await asyncio.to_thread(preflight.check_models, self._config)
        on_progress(f"starting vLLM {self._version}: V1 model runner, async scheduling off")
        await self._supervisor.start(on_progress)

    def _new_process(self) -> EngineProcess:
        config = replace(self._config, proposers=self._roster.specs)
        return EngineProcess(config, self._capacity, self._metrics)

    async def _adopt(self, process: EngineProcess) -> None:
        """Brings a new process to where the one before it was, and learns what it holds."""
        self._roster.adopt(await process.collective_rpc("specgate_memory"))
        if self._info is None:
            for name, path in self._config.adapters.items():
                await lora.load(process, self._adapters, name, path)
        else:
            await lora.load_again(process, self._adapters)
        self._info = self._describe(process.vllm_config)
        if self._sweep is not None:
            # A request that was admitted before that switch may still be on its way.
            await process.call("specgate_switch", *self._sweep)

    def _describe(self, config: Any) -> EngineInfo:
        return EngineInfo(
            engine="vllm",
            version=self._version,
            model=self._config.model,
            tokenizer=config.model_config.tokenizer,
            max_model_len=config.model_config.max_model_len,
            vocab_size=config.model_config.get_vocab_size(),
            max_logprobs=config.model_config.max_logprobs,
            max_speculative_tokens=self._capacity,
            proposers=self._roster.infos,
        )

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """See `Engine.generate`."""
        process = self._supervisor.child
        params = sampling_params(request)
        prompt = {"prompt_token_ids": list(request.prompt_token_ids)}
        with self._adapters.used(request.adapter):
            adapter = lora_request(request.adapter)
            outputs = process.generate(prompt, params, request.request_id, adapter)
            admitted = False
            try:
                async for output in outputs:
                    delta = to_delta(output)
                    admitted = True
                    yield delta
            except EngineDead as error:
                raise self._lost("This request is lost") from error
            except (ValueError, compat.VLLMClientError) as error:
                if admitted:
                    raise
                raise refused(error, request) from error
            except EngineError as error:
                # A grammar is compiled after admission, and one that fails ends its request.
                if admitted or request.sampling.structured_output is None:
                    raise
                raise refused(error, request) from error
            finally:
                await outputs.aclose()

    async def switch(self, method: SpecMethod, generation: int, *, running: bool) -> None:
        """See `Engine.switch`. New requests bring their method; only running ones need telling."""
        process = self._supervisor.child
        if not running:
            return
        sweep = (method.proposer, method.num_speculative_tokens, generation)
        try:
            await process.call("specgate_switch", *sweep)
        except EngineDead as error:
            raise self._lost("The method was not changed") from error
        self._sweep = sweep

    async def proposers(self) -> tuple[ProposerInfo, ...]:
        """See `Engine.proposers`."""
        return self._roster.present()

    async def load(self, fields: Mapping[str, Any]) -> ProposerInfo:
        """See `Engine.load`."""
        process = self._supervisor.child
        target = process.vllm_config.model_config
        sizes = TargetSizes(target.get_hidden_size(), target.get_vocab_size())
        loader = ProposerLoader(self._roster, self._capacity)
        try:
            return await loader.load(process, fields, sizes)
        except EngineDead as error:
            raise self._lost("The proposer was not loaded") from error

    async def unload(self, name: str) -> None:
        """See `Engine.unload`."""
        process = self._supervisor.child
        try:
            await ProposerLoader(self._roster, self._capacity).unload(process, name)
        except EngineDead as error:
            raise self._lost("The proposer is gone with it") from error

    @property
    def adapters(self) -> tuple[LoraAdapter, ...]:
        """See `Engine.adapters`."""
        return self._adapters.held

    async def load_adapter(self, name: str, path: str) -> LoraAdapter:
        """See `Engine.load_adapter`."""
        try:
            return await lora.load(self._supervisor.child, self._adapters, name, path)
        except EngineDead as error:
            raise self._lost("The adapter was not loaded") from error

    async def unload_adapter(self, name: str) -> None:
        """See `Engine.unload_adapter`."""
        adapter = self._adapters.remove(name)
        try:
            await self._supervisor.child.remove_adapter(adapter.id)
        except EngineDead as error:
            raise self._lost("The adapter is gone with it") from error

    async def stop(self) -> None:
        """See `Engine.stop`."""
        await self._supervisor.stop()

    def _lost(self, consequence: str) -> EngineDead:
        """The present failure, with what it means for one call."""
        failure = self.failure
        if failure is None:
            return EngineDead(f"The engine was stopped. {consequence}.")
        return EngineDead(f"{failure} {consequence}.", failure.retry_after_s)

    def _on_step(self, report: StepReport, drafted: Mapping[str, int]) -> None:
        self._roster.note(report, drafted)
        self._observer.on_step(report)
