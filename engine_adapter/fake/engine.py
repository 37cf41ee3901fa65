"""`FakeEngine`: an `Engine` without a model."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from engine_adapter.config import EngineConfig, draft_capacity
from engine_adapter.errors import (
    EngineConfigError,
    EngineDead,
    EngineNotReady,
    EngineStartError,
    InvalidRequest,
)
from engine_adapter.fake.admission import check_method, check_request
from engine_adapter.fake.batch import Batch
from engine_adapter.fake.metrics import FakeMetrics
from engine_adapter.fake.options import read_options
from engine_adapter.fake.sequence import Sequence
from engine_adapter.fake.stepper import Stepper
from engine_adapter.fake.vocabulary import Vocabulary, load_vocabulary, model_context
from engine_adapter.interface import EngineObserver
from engine_adapter.lora_registry import LoraRegistry
from engine_adapter.proposer_registry import ProposerRegistry
from engine_adapter.types import (
    NO_SWITCH,
    Delta,
    EngineInfo,
    GenerationRequest,
    LoraAdapter,
    ProposerInfo,
    SpecMethod,
    Switch,
)

_DEFAULT_CONTEXT = 2048


class FakeEngine:
    """Says deterministic nonsense with the tokens of a real tokenizer.

    The text depends on the prompt, and at a temperature above 0 on the seed; never on the
    proposer. `FakeOptions` tells how `EngineConfig.arguments` tunes speed, acceptance and
    failures. Sampling fields that only shape a distribution (`top_p`, penalties, `logit_bias`)
    are accepted and change nothing; those that restrict the text (`bad_words`, a form) are refused.
    """

    def __init__(
        self, config: EngineConfig, registry: CollectorRegistry, observer: EngineObserver
    ) -> None:
        """Checks the settings; loads nothing. Raises `EngineConfigError`."""
        self._config = config
        self._options = read_options(config.arguments)
        self._registry = ProposerRegistry(config.proposers)
        self._loras = LoraRegistry(config.arguments)
        self._capacity = draft_capacity(config.proposers, config.max_speculative_tokens)
        self._metrics = FakeMetrics(registry, config.served_model_name, self._capacity)
        self._batch = Batch(self._options)
        self._stepper = Stepper(self._batch, self._options, self._metrics, observer)
        self._loop_task: asyncio.Task[None] | None = None
        self._info: EngineInfo | None = None
        self._vocabulary: Vocabulary | None = None
        self._failure: EngineDead | None = None
        self._stopped = False
        self._last_running_switch = NO_SWITCH
        self._seeds = itertools.count()

    @property
    def info(self) -> EngineInfo:
        """What was started. Raises `EngineNotReady` before `start` has returned."""
        if self._info is None:
            raise EngineNotReady("the engine has not started yet")
        return replace(self._info, proposers=self._registry.infos)

    @property
    def failure(self) -> EngineDead | None:
        """Why the engine is dead, or `None`."""
        return self._failure

    @property
    def num_running(self) -> int:
        """Sequences in the batch."""
        return len(self._batch.running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a place in the batch."""
        return self._batch.waiting

    async def start(self, on_progress: Callable[[str], None]) -> None:
        """Loads the tokenizer and begins to step."""
        model = self._config.model
        on_progress(f"Reading the tokenizer of {model}")
        vocabulary = await asyncio.to_thread(load_vocabulary, model)
        on_progress("Starting the fake engine")
        await asyncio.sleep(self._options.fake_start_s)
        if self._options.fake_fail_start:
            raise EngineStartError(self._options.fake_fail_start)
        self._vocabulary = vocabulary
        self._registry.on_engine_started(())
        for name, path in self._config.lora_modules.items():
            with self._loras.loading(name, path):
                on_progress(f"Loading adapter {name}")
        self._info = self._describe(vocabulary)
        self._loop_task = asyncio.create_task(self._run(), name="fake-engine")

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """Generates one sequence; closing the iterator aborts it at once."""
        with self._loras.used(request.lora_adapter):
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

    async def switch(self, switch: Switch, *, running: bool) -> None:
        """Changes the spec method; see `Engine.switch`."""
        self._enter("switch")
        check_method(switch.spec_method, self._registry.specs)
        if not running:
            return
        self._last_running_switch = switch
        for sequence in self._batch.live():
            if not sequence.request.spec_decode.pinned:
                sequence.spec_method = switch.spec_method

    async def proposers(self) -> tuple[ProposerInfo, ...]:
        """The proposers, with the draft latency of those that have drafted."""
        self._meet_fate("proposers")
        latency = self._stepper.draft_ms
        return tuple(
            replace(info, draft_latency_ms=latency.get(info.name))
            for info in self._registry.snapshot()
        )

    async def load_proposer(self, fields: Mapping[str, Any]) -> ProposerInfo:
        """See `Engine.load_proposer`; `fake_load_s` and `fake_fail_load` control it."""
        self._enter("load")
        spec = self._registry.check_load(fields, self._capacity)
        self._registry.loading = spec
        try:
            await asyncio.sleep(self._options.fake_load_s)
            self._enter("load")
        finally:
            self._registry.loading = None
        if self._options.fake_fail_load:
            message = f"{spec.name}: {self._options.fake_fail_load}"
            raise EngineConfigError("proposer", message, "model")
        return self._registry.add(spec, ())

    async def unload_proposer(self, name: str) -> None:
        """Unloads a proposer; see `Engine.unload_proposer`."""
        self._enter("unload")
        self._registry.check_unload(name)
        self._registry.remove(name)

    @property
    def lora_adapters(self) -> tuple[LoraAdapter, ...]:
        """The adapters: each changes the text, independent of the files in its folder."""
        return self._loras.loaded

    async def load_lora_adapter(self, name: str, path: str) -> LoraAdapter:
        """Loads an adapter; see `Engine.load_lora_adapter`."""
        self._enter("load_adapter")
        with self._loras.loading(name, path) as adapter:
            return adapter

    async def unload_lora_adapter(self, name: str) -> None:
        """Unloads an adapter; see `Engine.unload_lora_adapter`."""
        self._enter("unload_adapter")
        self._loras.remove(name)

    async def stop(self) -> None:
        """Ends every sequence with `EngineDead`."""
        self._stopped = True
        task, self._loop_task = self._loop_task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._end_all(EngineDead("The engine was stopped."))

    def die(self, reason: str = "killed", retry_after_s: float | None = None) -> None:
        """Kills the engine, as a crash of its process would.

        With `retry_after_s` it says that it will serve again then; `revive` makes that true.
        """
        if self._failure is None:
            self._failure = EngineDead(f"The engine died: {reason}.", retry_after_s)
            self._end_all(self._failure)
        if self._loop_task is not None:
            self._loop_task.cancel()

    def revive(self) -> None:
        """Serves again after `die`, as a process that replaced the dead one would."""
        self._failure = None
        self._loop_task = asyncio.create_task(self._run(), name="fake-engine")

    async def _run(self) -> None:
        try:
            await self._stepper.run()
        except Exception as error:
            self.die(str(error))

    def _meet_fate(self, call: str) -> None:
        if self._info is None:
            raise EngineNotReady("the engine has not started yet")
        if self._options.fake_die_at_call == call:
            self.die(f"died at {call}, as fake_die_at_call asks")

    def _enter(self, call: str) -> None:
        self._meet_fate(call)
        if self._failure is not None:
            raise EngineDead(str(self._failure), self._failure.retry_after_s)
        if self._stopped:
            raise EngineDead("The engine was stopped.")

    def _admit(self, request: GenerationRequest) -> Sequence:
        self._enter("generate")
        check_request(request, self.info, self._registry.specs)
        if any(s.request.request_id == request.request_id for s in self._batch.live()):
            raise InvalidRequest("request_id", f"{request.request_id!r} is in use")
        assert self._vocabulary is not None
        sequence = Sequence(
            request,
            self._vocabulary,
            spec_method=self._method_for(request),
            seed=self._seed_for(request),
            length=self._options.fake_length,
            max_model_len=self.info.max_model_len,
            now_s=asyncio.get_running_loop().time(),
        )
        sequence.trouble = self._trouble_for(request)
        self._batch.add(sequence)
        self._stepper.show_load()
        self._stepper.wake()
        return sequence

    def _method_for(self, request: GenerationRequest) -> SpecMethod:
        params, last = request.spec_decode, self._last_running_switch
        overtaken = params.switch_epoch < last.epoch and not params.pinned
        return last.spec_method if overtaken else params.spec_method

    def _seed_for(self, request: GenerationRequest) -> int | None:
        if request.sampling.temperature == 0:
            return None
        seed = request.sampling.seed
        return next(self._seeds) + (1 << 64) if seed is None else seed

    def _trouble_for(self, request: GenerationRequest) -> str:
        options = self._options
        if not (options.fake_fail_prompt or options.fake_hang_prompt):
            return ""
        assert self._vocabulary is not None
        text = self._vocabulary.tokenizer.decode(list(request.prompt_token_ids))
        if options.fake_fail_prompt and options.fake_fail_prompt in text:
            return "fail"
        hangs = options.fake_hang_prompt and options.fake_hang_prompt in text
        return "hang" if hangs else ""

    def _abort(self, sequence: Sequence) -> None:
        if self._batch.discard(sequence):
            self._metrics.on_end(sequence, "abort", asyncio.get_running_loop().time())
            self._stepper.show_load()

    def _end_all(self, error: Exception) -> None:
        for sequence in self._batch.live():
            sequence.outbox.put_nowait(error)
        self._batch.clear()
        self._stepper.show_load()

    def _describe(self, vocabulary: Vocabulary) -> EngineInfo:
        context = self._options.max_model_len or model_context(self._config.model)
        return EngineInfo(
            engine="fake",
            version="1",
            model=self._config.model,
            tokenizer=self._config.model,
            max_model_len=context or _DEFAULT_CONTEXT,
            vocab_size=vocabulary.size,
            max_logprobs=self._options.max_logprobs,
            max_speculative_tokens=self._capacity,
            proposers=self._registry.infos,
        )
