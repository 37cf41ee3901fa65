"""One AsyncLLM and the engine process that it starts; only this file handles either of them."""

import asyncio
import gc
import multiprocessing
import signal
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import structlog

from engine_adapter.seam.cancellation import was_cancelled
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.errors import EngineConfigError, EngineDead, EngineStartError
from engine_adapter.seam.media import MediaItem, MediaPrompt, MediaSupport
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway import arguments, placement, preflight, ray_backend
from engine_adapter.vllm_engine.gateway.constraint_process import Vocabulary
from engine_adapter.vllm_engine.gateway.early_process import EarlyProcess, sigint_blocked
from engine_adapter.vllm_engine.gateway.heartbeat import TICK_S, Heartbeat
from engine_adapter.vllm_engine.gateway.media import media_support, render_media
from engine_adapter.vllm_engine.gateway.process_tree import ProcessTree
from engine_adapter.vllm_engine.gateway.stat_logger import VllmMetrics
from engine_adapter.vllm_engine.load_progress import progress_pipe
from engine_adapter.vllm_engine.patches.admission import patch_admission, patch_constraint_check
from engine_adapter.vllm_engine.patches.log_filters import silence_engine_death
from engine_adapter.vllm_engine.patches.module_names import patch_mp_context
from engine_adapter.vllm_engine.patches.prompt_logprobs import patch_prompt_logprobs
from engine_adapter.vllm_engine.patches.token_texts import patch_token_texts

_EXIT_TIMEOUT_S = 5.0
"""How long to wait for the exit status of a process that has reported its death, in seconds."""

_KILL_POLL_S = 0.05

_STOP_TIMEOUT_S = 3.0
"""How long a process that is told to stop may take, in seconds; then it is killed."""

log = structlog.get_logger(__name__)


class EngineProcess:
    """A `supervisor.Child` over vLLM.

    Args:
        config: model, proposers and vLLM's arguments.
        capacity: the draft capacity.
        metrics: the engine's metrics; they outlive the process.
        early: becomes the process; `None` if it is spawned.

    Attributes:
        vocabulary: what `ConstraintChecker` needs, which then checks constraints instead of vLLM;
            `None` if vLLM checks them, as it does with other backends.
    """

    def __init__(
        self,
        config: EngineConfig,
        capacity: int,
        metrics: VllmMetrics,
        early: EarlyProcess | None = None,
    ) -> None:
        self._config = config
        self._early = early
        self._capacity = capacity
        self._metrics = metrics
        self._llm: Any = None
        self._abandoned = threading.Event()
        self.vocabulary: Vocabulary | None = None
        self._watch: asyncio.Task[None] | None = None
        self._hang = ""

    @property
    def alive(self) -> bool:
        """See `Child.alive`."""
        return self._llm is not None and not self._llm.errored

    @property
    def vllm_config(self) -> Any:
        """The `VllmConfig` that vLLM built from the arguments."""
        return self._llm.vllm_config

    async def start(self, on_progress: Callable[[str], None]) -> None:
        """See `Child.start`."""
        async with progress_pipe(on_progress) as pipe:
            await self._load_in_thread(pipe)
        # vLLM starts it with the first request, and a death before that would go unnoticed.
        self._llm._run_output_handler()
        silence_engine_death()
        # vLLM asks with the first request, whose client would read any failure of it.
        await self._result_of(self._llm.get_supported_tasks())
        # A core that only replays, as that of `benchmarks.gateway`, has no process that could hang.
        for process in self._processes:
            tree = await ray_backend.tree_of(process.pid, self._config, self.collective_rpc)
            self._watch = asyncio.create_task(self._kill_when_hung(tree), name="engine-heartbeat")

    async def _kill_when_hung(self, tree: ProcessTree, retry_s: float = TICK_S) -> None:
        """Kills a process that hangs: its death then ends every call that waits for it.

        A watch that fails is logged, and begins again after `retry_s` seconds.
        """
        heartbeat = Heartbeat(self._answer, tree, self._config.hang)
        while True:
            try:
                self._hang = await heartbeat.hung()
                log.error("engine_hung", cause=f"the engine process {self._hang}")
                await asyncio.to_thread(tree.kill)
                return
            except EngineDead:
                return
            except Exception:
                log.exception("engine_watch_failed")
                await asyncio.sleep(retry_s)

    async def _answer(self) -> None:
        """Returns when EngineCore has answered. Raises `EngineDead`."""
        try:
            await self.call("specgate_answer")
        except EngineDead:
            raise
        except Exception as error:
            # A refusal, as of an engine that was told to end, is an answer too.
            log.debug("engine_refused_to_answer", error=str(error))

    @property
    def _processes(self) -> list[Any]:
        """The `multiprocessing` processes of EngineCore: one, without data parallelism."""
        processes: list[Any] = self._llm.engine_core.resources.engine_manager.processes
        return processes

    async def _load_in_thread(self, pipe: str) -> None:
        """Runs `_load`. When cancelled, kills the processes that it waits for, so that it ends."""
        earlier_children = set(multiprocessing.active_children())
        loading = asyncio.ensure_future(asyncio.to_thread(self._load, pipe))
        try:
            await asyncio.shield(loading)
        except asyncio.CancelledError:
            self._abandoned.set()
            if self._early is not None:
                self._early.close()
            while not loading.done():
                for process in set(multiprocessing.active_children()) - earlier_children:
                    process.kill()
                await asyncio.wait((loading,), timeout=_KILL_POLL_S)
            loading.exception()
            raise

    def _load(self, pipe: str) -> None:
        # Sets `_llm` instead of returning it: the result of a thread outlives the thread, and
        # vLLM's finalizer fails when it runs late in the interpreter's shutdown.
        try:
            args = arguments.engine_args(self._config, self._capacity, pipe)
            vllm_config = arguments.engine_config(args)
            preflight.check_state(vllm_config)
            cores = placement.cores(self._config) if compat.current_platform.is_cpu() else None
        except EngineConfigError:
            raise
        except Exception as error:  # vLLM raises many types for a bad argument
            raise arguments.refusal_of(error) from error
        if self._abandoned.is_set():
            return
        try:
            # Its module imports vLLM, which takes seconds.
            from engine_adapter.vllm_engine.executor import executor_class

            context = patch_mp_context(self._early.context()) if self._early else nullcontext()
            with context, sigint_blocked(), placement.on_cores(cores):
                self._llm = compat.AsyncLLM(
                    vllm_config,
                    executor_class(vllm_config),
                    log_stats=True,
                    log_requests=False,
                    stat_loggers=[self._metrics.stat_logger],
                )
                patch_admission(self._llm)
                patch_token_texts()
                patch_prompt_logprobs()
                self.vocabulary = Vocabulary.from_tokenizer(
                    vllm_config, self._llm.input_processor.tokenizer
                )
                patch_constraint_check(self._llm, is_checked=self.vocabulary is not None)
        except Exception as error:  # the engine process ended; its log has the cause
            raise EngineStartError(f"vLLM did not start: {error}") from error

    def media_support(self) -> MediaSupport | None:
        """What media the target takes; `None` if it takes text only."""
        template = self._config.chat_template
        text = None if template is None else Path(template).read_text("utf-8")
        return media_support(self.vllm_config, self._llm.renderer, text)

    def has_thinking_budget(self) -> bool:
        """Whether the target's reasoning begins and ends with a token that vLLM knows.

        A mark of several tokens could be written with others, and its end be missed.
        """
        marks = self.vllm_config.reasoning_config
        return (
            marks is not None
            and marks.enabled
            and len(marks.reasoning_start_token_ids) == 1
            and len(marks.natural_reasoning_end_token_ids) == 1
        )

    async def render_media(
        self,
        token_ids: Sequence[int],
        items: Sequence[MediaItem],
        param: str,
        processor_kwargs: Mapping[str, Any],
    ) -> MediaPrompt:
        """See `Engine.render_media`."""
        return await render_media(self._llm.renderer, token_ids, items, param, processor_kwargs)

    def generate(
        self,
        prompt: Any,
        params: Any,
        request_id: str,
        lora_request: Any = None,
        priority: int = 0,
        *,
        template_variables: Mapping[str, Any],
    ) -> AsyncGenerator[Any, None]:
        """vLLM's own generator of a request's outputs. Closing it aborts the request.

        With a reasoning parser, a constraint begins after the reasoning; `template_variables` tell
        the parser whether there is any.

        It raises vLLM's exceptions; `is_death` finds those that report the death of the process.
        """
        generator: AsyncGenerator[Any, None] = self._llm.generate(
            prompt,
            params,
            request_id,
            lora_request=lora_request,
            priority=priority,
            reasoning_parser_kwargs={"chat_template_kwargs": dict(template_variables)}
            if self._config.reasoning_parser
            else None,
        )
        return generator

    def is_death(self, error: BaseException) -> bool:
        """Whether an exception that ended `generate` means that the process is dead."""
        if isinstance(error, asyncio.CancelledError):
            # The client of a dead engine closes its sockets, which cancels tasks that are sending.
            return not was_cancelled()
        if isinstance(error, compat.EngineGenerateError):
            return not self.alive
        return isinstance(error, compat.EngineDeadError | EngineDead)

    async def call(self, method: str, *args: Any) -> Any:
        """Runs a method of EngineCore between two steps. Raises `EngineDead`."""
        return await self._result_of(self._llm.engine_core.call_utility_async(method, *args))

    async def reset_prefix_cache(self) -> bool:
        """Empties the prefix cache between two steps, unless a request holds a block of it.

        Returns whether it did. Raises `EngineDead`.
        """
        return bool(await self._result_of(self._llm.reset_prefix_cache()))

    async def add_lora(self, lora_request: Any) -> None:
        """Loads a LoRA adapter (vLLM's `LoRARequest`) between two steps.

        Raises `EngineDead`, and `ValueError` if the adapter cannot be used.
        """
        try:
            await self._result_of(self._llm.add_lora(lora_request))
        except EngineDead:
            raise
        except Exception as error:  # the engine process sends the cause only as text
            raise ValueError(str(error)) from error

    async def remove_lora(self, adapter_id: int) -> None:
        """Unloads a LoRA adapter between two steps. Raises `EngineDead`."""
        await self._result_of(self._llm.remove_lora(adapter_id))

    async def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        """Runs a method of the worker on every rank, between two steps. Raises `EngineDead`."""
        return await self._result_of(self._llm.collective_rpc(method, args=args))

    async def _result_of(self, call: Awaitable[Any]) -> Any:
        """Waits for a call to the engine. vLLM's own wait never ends if the engine dies first."""
        calling = asyncio.ensure_future(call)
        handler = self._llm.output_handler
        try:
            await asyncio.wait((calling, handler), return_when=asyncio.FIRST_COMPLETED)
            if calling.done() and not calling.cancelled():
                return calling.result()
        except compat.EngineDeadError as error:
            raise EngineDead(str(error)) from error
        finally:
            calling.cancel()
        raise EngineDead("the engine died before it answered")

    async def died(self) -> str:
        """See `Child.died`."""
        llm, processes = self._llm, self._processes
        # It ends with the engine, after it has failed every request that waits for an output.
        await asyncio.wait((llm.output_handler,))
        self._metrics.clear_gauges()
        reported = llm.engine_core.resources.engine_dead
        for process in processes:
            await asyncio.to_thread(process.join, _EXIT_TIMEOUT_S)
        statuses = [process.exitcode for process in processes]
        return self._hang or describe_end(statuses, reported=reported)

    async def stop(self) -> None:
        """See `Child.stop`."""
        llm, self._llm = self._llm, None
        if llm is None:
            return
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if handler := llm.output_handler:
            # A running handler would report the engine's end as an error.
            handler.cancel()
            await asyncio.gather(handler, return_exceptions=True)
        await asyncio.to_thread(llm.shutdown, _STOP_TIMEOUT_S)
        del llm, handler
        gc.collect()


def describe_end(statuses: list[int | None], *, reported: bool) -> str:
    """How the processes ended, to follow the words "the engine process".

    Args:
        statuses: of each process; `None` if it has not ended yet.
        reported: the process itself, or the watch over it, has said that it is dead.
    """
    status = next((status for status in statuses if status), statuses[0])
    if status is None and not reported:
        return "sent a message that could not be read"
    if status is None or status == 1:
        return "failed with an error, whose traceback is in the log"
    if status == -signal.SIGKILL:
        return "was killed by signal 9 (SIGKILL), as the kernel does when memory runs out"
    if status == -signal.SIGILL:
        return "was killed by signal 4 (SIGILL): it ran an instruction that this CPU does not have"
    if status < 0:
        return f"was killed by signal {-status} ({signal.Signals(-status).name})"
    return f"ended with exit status {status}"
