"""`VllmEngine`: the `Engine` over vLLM. It outlives its process, which is replaced when it dies."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from engine_adapter.proposers.contract import TargetSizes
from engine_adapter.registries.lora_registry import LoraRegistry
from engine_adapter.registries.policy_settings import PolicySettings
from engine_adapter.registries.proposer_registry import ProposerRegistry
from engine_adapter.seam.cancellation import was_cancelled
from engine_adapter.seam.config import EngineConfig, draft_capacity
from engine_adapter.seam.counts import StepReport
from engine_adapter.seam.errors import EngineDead, EngineError, EngineFull, EngineNotReady
from engine_adapter.seam.interface import EngineObserver
from engine_adapter.seam.media import MediaItem, MediaPrompt
from engine_adapter.seam.parsing import Parsing, ParsingRequest
from engine_adapter.seam.types import (
    NO_PARSER,
    NO_SWITCH,
    Delta,
    EngineInfo,
    GenerationRequest,
    LoraAdapter,
    PolicyInfo,
    ProposerInfo,
    StructuredOutput,
    Switch,
)
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway import arguments, hot_load, lora, preflight
from engine_adapter.vllm_engine.gateway.constraint_checker import ConstraintChecker
from engine_adapter.vllm_engine.gateway.early_process import EarlyProcess, early_process
from engine_adapter.vllm_engine.gateway.model_runner import scheduling
from engine_adapter.vllm_engine.gateway.parser_search import choose_parsers
from engine_adapter.vllm_engine.gateway.parsing import VllmParsers
from engine_adapter.vllm_engine.gateway.process import EngineProcess
from engine_adapter.vllm_engine.gateway.stat_logger import VllmMetrics
from engine_adapter.vllm_engine.gateway.supervisor import Supervisor
from engine_adapter.vllm_engine.gateway.translation import (
    ConstraintFailed,
    engine_input,
    lora_request,
    read_prompt_logprobs,
    sampling_params,
    to_delta,
    to_failed_constraint,
    to_invalid_request,
)
from engine_adapter.vllm_engine.wire import switch_to_wire


class VllmEngine:
    """vLLM with the configured proposers. See `engine_adapter.seam.interface.Engine`.

    A process that dies is replaced as `config.restart` says, and `_adopt` gives it the old state.

    Args:
        config: model, proposers and vLLM's arguments.
        registry: gets the `vllm:` metrics.
        observer: gets every step's report and every attempt to replace the process.

    Raises:
        EngineConfigError: a proposer's k is above the draft capacity.
    """

    def __init__(
        self, config: EngineConfig, registry: CollectorRegistry, observer: EngineObserver
    ) -> None:
        self._config = config
        self._observer = observer
        self._metrics = VllmMetrics(registry, self._on_step, config.data_parallel_index)
        self._supervisor = Supervisor(
            self._new_process, self._adopt, config.restart, observer.on_restart
        )
        self._version = ""
        self._early: EarlyProcess | None = None
        self._capacity = draft_capacity(config.proposers, config.max_speculative_tokens)
        self._info: EngineInfo | None = None
        self._last_running_switch = NO_SWITCH
        self._proposer_registry = ProposerRegistry(config.proposers, self._capacity)
        self._lora_registry = LoraRegistry(config.arguments)
        self._policies = PolicySettings(config.policies, config.primary)
        self._parsers = VllmParsers(config)
        self._choices = (NO_PARSER, NO_PARSER)
        self._checker: ConstraintChecker | None = None
        self._turn = asyncio.Lock()

    @property
    def info(self) -> EngineInfo:
        """See `Engine.info`."""
        if self._info is None:
            raise EngineNotReady("the engine has not started yet")
        if self._info.proposers is not self._proposer_registry.infos:
            self._info = replace(self._info, proposers=self._proposer_registry.infos)
        return self._info

    @property
    def failure(self) -> EngineDead | None:
        """See `Engine.failure`."""
        return self._supervisor.failure

    @property
    def failures(self) -> tuple[EngineDead | None, ...]:
        """See `Engine.failures`."""
        return (self.failure,)

    async def start(self, on_progress: Callable[[str], None]) -> None:
        """See `Engine.start`."""
        self._version = preflight.check_libraries()
        arguments.prepare_environment(self._config)
        with early_process(self._config) as self._early:
            await self._start(on_progress)
        self._early = None

    async def _start(self, on_progress: Callable[[str], None]) -> None:
        on_progress("checking models")
        await asyncio.to_thread(preflight.check_models, self._config)
        self._choices = await asyncio.to_thread(choose_parsers, self._config)
        calls, reasoning = self._choices
        self._config = replace(
            self._config, tool_call_parser=calls.name, reasoning_parser=reasoning.name
        )
        self._parsers = VllmParsers(self._config)
        if self._parsers.are_configured:
            on_progress("loading parsers")
            await asyncio.to_thread(self._parsers.load)
        on_progress(f"starting vLLM {self._version}: {scheduling(self._config.arguments)}")
        await self._supervisor.start(on_progress)
        if (vocabulary := self._supervisor.child.vocabulary) is not None:
            on_progress("starting the check of constraints")
            checker = ConstraintChecker.from_config(self._config, vocabulary)
            await checker.start()
            self._checker = checker

    def _new_process(self) -> EngineProcess:
        specs = self._proposer_registry.specs
        policies = self._policies.usable(specs)
        config = replace(self._config, proposers=specs, policies=policies)
        return EngineProcess(config, self._capacity, self._metrics, self._early)

    async def _adopt(self, process: EngineProcess) -> None:
        """Makes a started process the engine's: reads its memory, restores adapters and switch."""
        await hot_load.try_target(process, self._config.model)
        await hot_load.smoke_test_proposers(process, self._proposer_registry.specs)
        self._proposer_registry.on_engine_started(await process.collective_rpc("specgate_memory"))
        if self._info is None:
            for name, path in self._config.lora_modules.items():
                await lora.load_adapter(process, self._lora_registry, name, path)
        else:
            await lora.reload_adapters(process, self._lora_registry)
        self._info = self._describe(process)
        if self._policies.evidence:
            await process.call("specgate_restore_evidence", dict(self._policies.evidence))
        if self._last_running_switch.epoch:
            # A request admitted before that switch may not have reached the engine yet.
            await process.call("specgate_switch", *switch_to_wire(self._last_running_switch))

    def _describe(self, process: EngineProcess) -> EngineInfo:
        config = process.vllm_config
        return EngineInfo(
            engine="vllm",
            version=self._version,
            model=self._config.model,
            tokenizer=config.model_config.tokenizer,
            max_model_len=config.model_config.max_model_len,
            max_num_seqs=config.scheduler_config.max_num_seqs,
            vocab_size=config.model_config.get_vocab_size(),
            max_logprobs=config.model_config.max_logprobs,
            max_speculative_tokens=self._capacity,
            proposers=self._proposer_registry.infos,
            tool_call_parser=self._choices[0],
            reasoning_parser=self._choices[1],
            has_thinking_budget=process.has_thinking_budget(),
            media=process.media_support(),
        )

    async def check_constraint(self, constraint: StructuredOutput, key: str | None = None) -> None:
        """See `Engine.check_constraint`."""
        if (failure := self.failure) is not None:
            raise failure
        if self._checker is None:
            return
        try:
            await self._checker.check(constraint, key)
        except asyncio.CancelledError:
            if was_cancelled():
                raise
            raise EngineDead("The engine was stopped.") from None

    async def render_media(
        self,
        token_ids: Sequence[int],
        items: Sequence[MediaItem],
        param: str,
        processor_kwargs: Mapping[str, Any],
    ) -> MediaPrompt:
        """See `Engine.render_media`."""
        child = self._supervisor.child
        return await child.render_media(token_ids, items, param, processor_kwargs)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """See `Engine.generate`."""
        process = self._supervisor.child
        params = sampling_params(request, self._checker)
        prompt = engine_input(request)
        adapter = lora_request(request.lora_adapter)
        with self._lora_registry.keep_loaded(request.lora_adapter):
            outputs = process.generate(
                prompt,
                params,
                request.request_id,
                adapter,
                request.priority,
                template_variables=request.template_variables,
            )
            started = False
            try:
                async for output in outputs:
                    prompt_logprobs = None
                    if output.prompt_logprobs:  # later outputs have an empty list
                        prompt_logprobs = await read_prompt_logprobs(output, self._turn)
                    delta = to_delta(output, prompt_logprobs)
                    started = True
                    yield delta
            except (Exception, asyncio.CancelledError) as error:
                if process.is_death(error):
                    raise self._dead_error("This request is lost") from error
                if isinstance(error, ConstraintFailed):
                    raise to_failed_constraint(error, request) from error
                if started or not _is_refusal(error, request):
                    raise
                raise to_invalid_request(error, request) from error
            finally:
                await outputs.aclose()

    def parsing(self, request: ParsingRequest) -> Parsing | None:
        """See `Engine.parsing`."""
        if not self._parsers.are_configured:
            return None
        return self._parsers.parsing(request, self._supervisor.child.vllm_config.model_config)

    async def switch(self, switch: Switch, *, running: bool) -> None:
        """See `Engine.switch`. New requests carry their method; only running ones need a call."""
        process = self._supervisor.child
        if not running:
            return
        with self._death_explained("The method was not changed"):
            await process.call("specgate_switch", *switch_to_wire(switch))
        self._last_running_switch = switch

    async def proposers(self) -> tuple[ProposerInfo, ...]:
        """See `Engine.proposers`."""
        return self._proposer_registry.snapshot()

    async def load_proposer(self, fields: Mapping[str, Any]) -> ProposerInfo:
        """See `Engine.load_proposer`."""
        process = self._supervisor.child
        target = process.vllm_config.model_config
        sizes = TargetSizes(target.get_hidden_size(), target.get_vocab_size())
        with self._death_explained("The proposer was not loaded"):
            return await hot_load.load_proposer(process, self._proposer_registry, fields, sizes)

    async def unload_proposer(self, name: str) -> None:
        """See `Engine.unload_proposer`."""
        process = self._supervisor.child
        with self._death_explained("The proposer is no longer loaded"):
            await hot_load.unload_proposer(process, self._proposer_registry, name)

    @property
    def policies(self) -> tuple[PolicyInfo, ...]:
        """See `Engine.policies`."""
        return self._policies.infos(self._proposer_registry.specs)

    @property
    def evidence(self) -> Mapping[str, Any]:
        """See `Engine.evidence`."""
        return self._policies.evidence

    async def set_policy(self, name: str, parameters: Mapping[str, Any]) -> PolicyInfo:
        """See `Engine.set_policy`."""
        process, specs = self._supervisor.child, self._proposer_registry.specs
        self._policies.check(name, parameters, specs)
        with self._death_explained("The policy was not changed"):
            await process.call("specgate_set_policy", name, dict(parameters))
        return self._policies.set(name, parameters, specs)

    async def reset_prefix_cache(self) -> bool:
        """See `Engine.reset_prefix_cache`."""
        with self._death_explained("The prefix cache was not emptied"):
            return await self._supervisor.child.reset_prefix_cache()

    @property
    def lora_adapters(self) -> tuple[LoraAdapter, ...]:
        """See `Engine.lora_adapters`."""
        return self._lora_registry.loaded

    async def load_lora_adapter(self, name: str, path: str) -> LoraAdapter:
        """See `Engine.load_lora_adapter`."""
        with self._death_explained("The adapter was not loaded"):
            process = self._supervisor.child
            return await lora.load_adapter(process, self._lora_registry, name, path)

    async def unload_lora_adapter(self, name: str) -> None:
        """See `Engine.unload_lora_adapter`."""
        adapter = self._lora_registry.remove(name)
        with self._death_explained("The adapter is no longer loaded"):
            await self._supervisor.child.remove_lora(adapter.id)

    async def stop(self) -> None:
        """See `Engine.stop`."""
        if self._checker is not None:
            await self._checker.stop()
        await self._supervisor.stop()

    @contextmanager
    def _death_explained(self, consequence: str) -> Iterator[None]:
        """Adds the consequence for one call to an `EngineDead`."""
        try:
            yield
        except EngineDead as error:
            raise self._dead_error(consequence) from error

    def _dead_error(self, consequence: str) -> EngineDead:
        """The engine's failure, and its consequence for one call."""
        failure = self.failure
        if failure is None:
            return EngineDead(f"The engine was stopped. {consequence}.")
        return EngineDead(f"{failure} {consequence}.", failure.retry_after_s)

    def _on_step(self, report: StepReport) -> None:
        self._proposer_registry.record_step(report)
        self._policies.record_step(report)
        self._observer.on_step(report)


def _is_refusal(error: BaseException, request: GenerationRequest) -> bool:
    """Whether an error before the first output means that vLLM refuses the request."""
    if isinstance(error, EngineError):
        # vLLM compiles a grammar after admission; a grammar that fails ends its request.
        return request.sampling.structured_output is not None and not isinstance(error, EngineFull)
    return isinstance(error, ValueError | compat.VLLMClientError)
