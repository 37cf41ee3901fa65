"""`FakeEngine`: an `Engine` without a model."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from engine_adapter.fake.admission import check_method, check_request
from engine_adapter.fake.batch import Batch
from engine_adapter.fake.lifetime import Lifetime
from engine_adapter.fake.media import PLACEHOLDER, render_media
from engine_adapter.fake.metrics import FakeMetrics
from engine_adapter.fake.options import read_options
from engine_adapter.fake.parsing import FakeParsing, checked, parsing
from engine_adapter.fake.planning import StepPlanning
from engine_adapter.fake.sequence import FakeSequence, given_text, injected_fault
from engine_adapter.fake.stepper import Stepper
from engine_adapter.fake.vocabulary import Vocabulary, describe, load_vocabulary
from engine_adapter.registries.lora_registry import LoraRegistry
from engine_adapter.registries.proposer_registry import ProposerRegistry
from engine_adapter.seam.config import EngineConfig, draft_capacity
from engine_adapter.seam.errors import (
    EngineConfigError,
    EngineDead,
    EngineError,
    EngineNotReady,
    EngineStartError,
    InvalidRequest,
)
from engine_adapter.seam.interface import EngineObserver
from engine_adapter.seam.media import MediaItem, MediaPrompt
from engine_adapter.seam.parsing import ParsingRequest
from engine_adapter.seam.types import (
    NO_SWITCH,
    Delta,
    EngineInfo,
    GenerationRequest,
    LoraAdapter,
    PolicyInfo,
    ProposerInfo,
    SpecMethod,
    StructuredOutput,
    Switch,
)


class FakeEngine:
    """Generates deterministic nonsense with the tokens of a real tokenizer.

    The text depends on the prompt and the adapter, and at a temperature above 0 on the seed; never
    on the proposer. `FakeOptions` documents how `EngineConfig.arguments` control speed, acceptance
    and failures. Sampling fields that shape a distribution (`top_p`, penalties) have no effect. A
    JSON schema is honoured; what else restricts the text (regex, grammar, bad words) is refused.
    """

    def __init__(
        self, config: EngineConfig, registry: CollectorRegistry, observer: EngineObserver
    ) -> None:
        """Checks the settings; loads nothing. Raises `EngineConfigError`."""
        self._config = checked(config)
        self._options = read_options(config.arguments)
        self._capacity = draft_capacity(config.proposers, config.max_speculative_tokens)
        self._proposer_registry = ProposerRegistry(config.proposers, self._capacity)
        self._lora_registry = LoraRegistry(config.arguments)
        self._metrics = FakeMetrics(
            registry, config.served_model_name, self._capacity, config.data_parallel_index
        )
        self._batch = Batch(self._options)
        self._planning = StepPlanning(config, self._capacity)
        self._stepper = Stepper(
            self._batch, self._planning, self._options, self._metrics, observer, config.hang
        )
        self._lifetime = Lifetime(
            self._stepper.run, self._end_all, observer.on_restart, self._options.fake_restart_s
        )
        self._info: EngineInfo | None = None
        self._vocabulary: Vocabulary | None = None
        self._last_running_switch = NO_SWITCH
        self._seeds = itertools.count()

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
        return self._lifetime.failure

    @property
    def failures(self) -> tuple[EngineDead | None, ...]:
        """See `Engine.failures`."""
        return (self.failure,)

    @property
    def num_running(self) -> int:
        """The number of sequences that run."""
        return len(self._batch.running)

    @property
    def num_waiting(self) -> int:
        """The number of sequences that wait."""
        return self._batch.num_waiting

    async def start(self, on_progress: Callable[[str], None]) -> None:
        """See `Engine.start`."""
        on_progress(f"Reading the tokenizer of {self._config.model}")
        vocabulary = await asyncio.to_thread(load_vocabulary, self._config.model)
        on_progress("Starting the fake engine")
        await asyncio.sleep(self._options.fake_start_s)
        if self._options.fake_fail_start:
            raise EngineStartError(self._options.fake_fail_start)
        self._vocabulary = vocabulary
        self._proposer_registry.on_engine_started(())
        for name, path in self._config.lora_modules.items():
            async with self._lora_registry.loading(name, path):
                on_progress(f"Loading adapter {name}")
        self._info = describe(self._config, self._options, vocabulary, self._capacity)
        self._lifetime.begin()

    async def render_media(
        self,
        token_ids: Sequence[int],
        items: Sequence[MediaItem],
        param: str,
        processor_kwargs: Mapping[str, Any],
    ) -> MediaPrompt:
        """See `Engine.render_media`."""
        self._begin_call("render_media")
        assert self._vocabulary is not None
        placeholder_id = self._vocabulary.tokenizer.token_to_id(PLACEHOLDER)
        return render_media(token_ids, items, param, processor_kwargs, placeholder_id)

    async def check_constraint(self, constraint: StructuredOutput, key: str | None = None) -> None:
        """See `Engine.check_constraint`. `generate` refuses what cannot be honoured."""
        self._begin_call("check_constraint")

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """See `Engine.generate`."""
        with self._lora_registry.keep_loaded(request.lora_adapter):
            sequence = self._admit(request)
            try:
                while True:
                    item = await sequence.outbox.get()
                    if isinstance(item, Exception):
                        raise item
                    yield item
                    if item.finish_reason is not None:
                        return
            finally:
                self._abort(sequence)

    def parsing(self, request: ParsingRequest) -> FakeParsing | None:
        """See `Engine.parsing`."""
        return parsing(self._config, request)

    async def switch(self, switch: Switch, *, running: bool) -> None:
        """See `Engine.switch`."""
        self._begin_call("switch")
        if self._options.fake_fail_switch:
            raise EngineError(self._options.fake_fail_switch)
        check_method(switch.spec_method, self._proposer_registry.specs, self._capacity)
        if not running:
            return
        if self._stepper.hangs:
            # A real one waits for the end of the step too.
            await self._lifetime.ended.wait()
            self._begin_call("switch")
        self._last_running_switch = switch
        for sequence in self._batch.live():
            if not sequence.request.spec_decode.pinned:
                sequence.spec_method = switch.spec_method

    async def proposers(self) -> tuple[ProposerInfo, ...]:
        """See `Engine.proposers`."""
        self._inject_fault("proposers")
        latency = self._stepper.draft_ms
        return tuple(
            replace(info, draft_latency_ms=latency.get(info.name))
            for info in self._proposer_registry.snapshot()
        )

    async def load_proposer(self, fields: Mapping[str, Any]) -> ProposerInfo:
        """See `Engine.load_proposer`; `fake_load_s` and `fake_fail_load` control it."""
        self._begin_call("load")
        spec = self._proposer_registry.check_load(fields)
        self._proposer_registry.loading = spec
        try:
            await asyncio.sleep(self._options.fake_load_s)
            self._begin_call("load")
        finally:
            self._proposer_registry.loading = None
        if self._options.fake_fail_load:
            message = f"{spec.name}: {self._options.fake_fail_load}"
            raise EngineConfigError("proposer", message, "model")
        self._planning.load(spec)
        return self._proposer_registry.add(spec, ())

    async def unload_proposer(self, name: str) -> None:
        """See `Engine.unload_proposer`."""
        self._begin_call("unload")
        self._proposer_registry.check_unload(name)
        self._proposer_registry.remove(name)
        self._planning.unload(name)

    @property
    def policies(self) -> tuple[PolicyInfo, ...]:
        """See `Engine.policies`; their state is current."""
        return self._planning.policies

    @property
    def evidence(self) -> Mapping[str, Any]:
        """See `Engine.evidence`; it is current."""
        return self._planning.evidence

    async def set_policy(self, name: str, parameters: Mapping[str, Any]) -> PolicyInfo:
        """See `Engine.set_policy`."""
        self._begin_call("set_policy")
        return self._planning.set_policy(name, parameters)

    async def reset_prefix_cache(self) -> bool:
        """See `Engine.reset_prefix_cache`. There is none; it is as if sequences held its blocks."""
        self._begin_call("reset_prefix_cache")
        return not self._batch.running

    @property
    def lora_adapters(self) -> tuple[LoraAdapter, ...]:
        """See `Engine.lora_adapters`. An adapter's name changes the text; its files do not."""
        return self._lora_registry.loaded

    async def load_lora_adapter(self, name: str, path: str) -> LoraAdapter:
        """See `Engine.load_lora_adapter`."""
        self._begin_call("load_adapter")
        async with self._lora_registry.loading(name, path) as adapter:
            return adapter

    async def unload_lora_adapter(self, name: str) -> None:
        """See `Engine.unload_lora_adapter`."""
        self._begin_call("unload_adapter")
        self._lora_registry.remove(name)

    async def stop(self) -> None:
        """See `Engine.stop`."""
        await self._lifetime.stop()

    def die(self, reason: str = "killed", retry_after_s: float | None = None) -> None:
        """Kills the engine, as a crash of its process would.

        Args:
            reason: the cause, for `failure`.
            retry_after_s: seconds until `revive` is expected; `None` announces no replacement,
                or that of `fake_restart_s`.
        """
        self._lifetime.die(reason, retry_after_s)

    def revive(self) -> None:
        """Serves again after `die`, as a new process would."""
        self._lifetime.begin()

    def _inject_fault(self, call: str) -> None:
        """Dies if `fake_die_at_call` names the call. Raises `EngineNotReady`."""
        if self._info is None:
            raise EngineNotReady("the engine has not started yet")
        if self._options.fake_die_at_call == call:
            self.die(f"fake_die_at_call ended it at {call}")

    def _begin_call(self, call: str) -> None:
        """Raises `EngineDead` if the engine cannot serve the call, and `EngineNotReady`."""
        self._inject_fault(call)
        if failure := self._lifetime.failure:
            raise failure
        if self._lifetime.stopped:
            raise EngineDead("The engine was stopped.")

    def _admit(self, request: GenerationRequest) -> FakeSequence:
        self._begin_call("generate")
        check_request(request, self.info, self._proposer_registry.specs)
        if any(s.request.request_id == request.request_id for s in self._batch.live()):
            raise InvalidRequest("request_id", f"{request.request_id!r} is in use")
        assert self._vocabulary is not None
        seed = self._seed_for(request)
        sequence = FakeSequence(
            request,
            self._vocabulary,
            spec_method=self._method_for(request),
            seed=seed,
            length=self._options.fake_length,
            max_model_len=self.info.max_model_len,
            now_s=asyncio.get_running_loop().time(),
            text=given_text(request, self._options, self._vocabulary, seed),
        )
        sequence.injected_fault = injected_fault(request, self._options, self._vocabulary)
        self._planning.admit(request)
        self._batch.add(sequence)
        self._stepper.show_load()
        self._stepper.wake()
        return sequence

    def _method_for(self, request: GenerationRequest) -> SpecMethod:
        params, last_switch = request.spec_decode, self._last_running_switch
        overtaken = params.switch_epoch < last_switch.epoch and not params.pinned
        return last_switch.spec_method if overtaken else params.spec_method

    def _seed_for(self, request: GenerationRequest) -> int | None:
        if request.sampling.temperature == 0:
            return None
        seed = request.sampling.seed
        return next(self._seeds) + (1 << 64) if seed is None else seed

    def _abort(self, sequence: FakeSequence) -> None:
        self._planning.free(sequence.request.request_id)
        if self._batch.discard(sequence):
            self._metrics.on_end(sequence, "abort", asyncio.get_running_loop().time())
            self._stepper.show_load()

    def _end_all(self, error: Exception) -> None:
        for sequence in self._batch.live():
            sequence.outbox.put_nowait(error)
        self._batch.clear()
        self._stepper.show_load()
