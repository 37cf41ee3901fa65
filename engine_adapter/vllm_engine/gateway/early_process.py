"""A process that imports vLLM while the gateway does, and then becomes that of the engine.

Each of them needs ten seconds of a core for it. One after the other, a start waits for both.
"""

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from io import BytesIO
from multiprocessing import current_process, get_context, reduction, resource_tracker, spawn
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from engine_adapter.seam.config import EngineConfig
from engine_adapter.vllm_engine import compat

_THREADS = "OMP_NUM_THREADS"
"""The variable that torch reads when it is imported."""


def _import_engine() -> None:
    _ = compat.EngineCore
    import_module("engine_adapter.vllm_engine.core.scheduler")
    import_module("engine_adapter.vllm_engine.worker.worker")


class EarlyProcess:
    """A process that waits for its work.

    Args:
        preload: imports what the work needs.
    """

    def __init__(self, preload: Callable[[], None] = _import_engine) -> None:
        receiver, self._sender = get_context("spawn").Pipe(duplex=False)
        self._executable = spawn.get_executable()
        self._process: Any = SpawnProcess(target=_wait_for_work, args=(receiver, preload))
        with sigint_blocked():
            self._process.start()
        receiver.close()
        self._has_work = False

    def context(self) -> SpawnContext:
        """A context whose first process this one becomes; others are spawned."""
        context = SpawnContext()
        context.Process = partial(_EngineProcess, self)  # type: ignore[assignment, misc]
        return context

    def become(self, process: SpawnProcess) -> Any:
        """Runs what `process` is to run. Returns its `Popen`; `None` if it must be spawned.

        It gets the present environment, and keeps the signals and the cores that it has.
        """
        # vLLM changes the executable to bind the process to memory.
        is_other = spawn.get_executable() != self._executable
        if self._has_work or is_other or not self._process.is_alive():
            return None
        work: Any = process
        data = BytesIO()
        try:
            reduction.dump((dict(os.environ), work.name, work._target, work._kwargs), data)
            self._sender.send_bytes(data.getbuffer())
        except (OSError, RuntimeError):  # it has ended, or an argument goes to children only
            return None
        self._has_work = True
        self._sender.close()
        return self._process._popen

    def close(self) -> None:
        """Ends it, unless it has work. Safe to call twice, and while `become` runs."""
        if not self._has_work:
            self._process.kill()
            self._process.join()


class _EngineProcess(SpawnProcess):
    """A process that `early` becomes, or that is spawned."""

    def __init__(self, early: EarlyProcess, **work: Any) -> None:
        super().__init__(**work)
        self._early = early
        self._work = work

    def _Popen(self, _: Any) -> Any:  # type: ignore[override]
        process: Any = SpawnProcess(**self._work)
        return self._early.become(process) or process._Popen(process)


@contextmanager
def early_process(config: EngineConfig) -> Iterator[EarlyProcess | None]:
    """An early process in the block, if the gateway has yet to import vLLM; otherwise `None`.

    An engine among several is spawned: it inherits the cores that it may use.
    """
    if "vllm" in sys.modules or config.data_parallel_size > 1:
        yield None
        return
    early = EarlyProcess()
    try:
        yield early
    finally:
        early.close()


def _wait_for_work(receiver: Connection, preload: Callable[[], None]) -> None:
    with suppress(Exception):  # the work fails then, and says why
        preload()
    try:
        data = receiver.recv_bytes()
    except EOFError:  # the gateway has ended
        return
    environment, name, target, arguments = pickle.loads(data)
    threads = environment.get(_THREADS, "")
    if threads.isdecimal() and threads != os.environ.get(_THREADS):
        import_module("torch").set_num_threads(int(threads))
    _set_environment(environment)
    current_process().name = name
    target(**arguments)


def _set_environment(environment: Mapping[str, str]) -> None:
    """Changes the variables that differ: a process's title needs the others where they are."""
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Keeps Ctrl-C, which reaches the whole process group, from processes started in the block.

    The gateway ends these processes itself, after the running requests.
    """
    # The tracker unblocks the signal when it starts, so it must be running before the block.
    resource_tracker.ensure_running()
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
