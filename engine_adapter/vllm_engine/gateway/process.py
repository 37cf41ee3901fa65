"""One AsyncLLM and the engine process behind it, which never leave this file."""

import asyncio
import gc
import multiprocessing
import signal
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

from engine_adapter.config import EngineConfig
from engine_adapter.errors import EngineConfigError, EngineDead, EngineStartError
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway import arguments
from engine_adapter.vllm_engine.gateway.stat_logger import VllmMetrics
from engine_adapter.vllm_engine.load_progress import progress_pipe
from engine_adapter.vllm_engine.patches.admission import patch_admission
from engine_adapter.vllm_engine.patches.log_filters import silence_engine_death

_EXIT_S = 5.0
"""Seconds that a process that announced its death gets to be gone, so that its status is known."""

_KILL_POLL_S = 0.05


class EngineProcess:
    """A `supervisor.Child` over vLLM.

    Args:
        config: model, proposers and vLLM's arguments.
        capacity: the draft capacity.
        metrics: the engine's, which outlive the process.
    """

    def __init__(self, config: EngineConfig, capacity: int, metrics: VllmMetrics) -> None:
        self._config = config
        self._capacity = capacity
        self._metrics = metrics
        self._llm: Any = None
        self._abandoned = threading.Event()

    @property
    def alive(self) -> bool:
        """See `Child.alive`."""
        return self._llm is not None and not self._llm.errored

    @property
    def vllm_config(self) -> Any:
        """What vLLM made of the arguments."""
        return self._llm.vllm_config

    async def start(self, on_progress: Callable[[str], None]) -> None:
        """See `Child.start`."""
        async with progress_pipe(on_progress) as pipe:
            await self._loaded(pipe)
        # vLLM starts it with the first request; a death before that would go unnoticed.
        self._llm._run_output_handler()
        silence_engine_death()

    async def _loaded(self, pipe: str) -> None:
        """Loads in a thread. Cancelled, it kills what the thread waits for, and waits for it."""
        before = set(multiprocessing.active_children())
        loading = asyncio.ensure_future(asyncio.to_thread(self._load, pipe))
        try:
            await asyncio.shield(loading)
        except asyncio.CancelledError:
            self._abandoned.set()
            while not loading.done():
                for process in set(multiprocessing.active_children()) - before:
                    process.kill()
                await asyncio.wait((loading,), timeout=_KILL_POLL_S)
            loading.exception()
            raise

    def _load(self, pipe: str) -> None:
        # Sets `_llm` and returns nothing: a thread's result outlives it, and vLLM's finalizer
        # fails if it first runs when the interpreter is half gone.
        try:
            args = arguments.engine_args(self._config, self._capacity, pipe)
            vllm_config = args.create_engine_config()
        except EngineConfigError:
            raise
        except Exception as error:  # vLLM raises anything for a bad argument
            raise EngineConfigError("engine_args", str(error)) from error
        if self._abandoned.is_set():
            return
        try:
            with _interrupts_blocked():
                self._llm = compat.AsyncLLM.from_vllm_config(
                    vllm_config, stat_loggers=[self._metrics.stat_logger]
                )
                patch_admission(self._llm)
        except Exception as error:  # whatever ended the engine process; its log has the cause
            raise EngineStartError(f"vLLM did not start: {error}") from error

    async def generate(
        self, prompt: Any, params: Any, request_id: str, adapter: Any = None
    ) -> AsyncGenerator[Any, None]:
        """vLLM's outputs for a request. Closing the generator aborts it.

        Raises `EngineDead`, and whatever vLLM raises.
        """
        llm = self._llm
        outputs = llm.generate(prompt, params, request_id, lora_request=adapter)
        try:
            async for output in outputs:
                yield output
        except compat.EngineDeadError as error:
            raise EngineDead(str(error)) from error
        except asyncio.CancelledError as error:
            if _was_cancelled():
                raise
            # Closing its sockets, a dead engine's client cancels whoever waits to send.
            raise EngineDead("the engine died before it had the request") from error
        except compat.EngineGenerateError as error:
            if llm.errored:
                raise EngineDead(str(error)) from error
            raise
        finally:
            await outputs.aclose()

    async def call(self, method: str, *args: Any) -> Any:
        """Runs a method of EngineCore between two steps. Raises `EngineDead`."""
        return await self._answer(self._llm.engine_core.call_utility_async(method, *args))

    async def add_adapter(self, adapter: Any) -> None:
        """Loads a LoRA adapter (vLLM's `LoRARequest`) between two steps.

        Raises `EngineDead`, and `ValueError` where it cannot be used.
        """
        try:
            await self._answer(self._llm.add_lora(adapter))
        except EngineDead:
            raise
        except Exception as error:  # the engine process sends the cause as text
            raise ValueError(str(error)) from error

    async def remove_adapter(self, adapter_id: int) -> None:
        """Unloads a LoRA adapter between two steps. Raises `EngineDead`."""
        await self._answer(self._llm.remove_lora(adapter_id))

    async def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        """Runs a method of the worker on every rank, between two steps. Raises `EngineDead`."""
        return await self._answer(self._llm.collective_rpc(method, args=args))

    async def _answer(self, call: Awaitable[Any]) -> Any:
        """vLLM's answer. It never comes from an engine that dies meanwhile."""
        asking = asyncio.ensure_future(call)
        handler = self._llm.output_handler
        try:
            await asyncio.wait((asking, handler), return_when=asyncio.FIRST_COMPLETED)
            if asking.done() and not asking.cancelled():
                return asking.result()
        except compat.EngineDeadError as error:
            raise EngineDead(str(error)) from error
        finally:
            asking.cancel()
        raise EngineDead("the engine died before it answered")

    async def died(self) -> str:
        """See `Child.died`."""
        llm = self._llm
        # It ends with the engine, after it has told everyone who waits for an output.
        await asyncio.wait((llm.output_handler,))
        self._metrics.clear_gauges()
        manager = llm.engine_core.resources.engine_manager
        for process in manager.processes:
            await asyncio.to_thread(process.join, _EXIT_S)
        return _how_it_ended([process.exitcode for process in manager.processes])

    async def stop(self) -> None:
        """See `Child.stop`."""
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


def _how_it_ended(statuses: list[int | None]) -> str:
    """The end of "the engine process ..."."""
    status = next((status for status in statuses if status), statuses[0])
    if status is None:
        return "sent what could not be read"
    if status < 0:
        return f"was killed by signal {-status} ({signal.Signals(-status).name})"
    return f"ended with exit status {status}"


def _was_cancelled() -> bool:
    """Whether a `CancelledError` was meant for the running task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes that are started meanwhile never see Ctrl-C, which goes to the whole group.

    The gateway ends them itself, once the requests that run have ended.
    """
    # Begun now: starting it with the first process would unblock the signal again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
