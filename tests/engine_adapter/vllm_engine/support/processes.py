"""Engine processes of tests, forked from one process of the session that has imported vLLM.

The import takes five to ten seconds, and most of these engines run for less. The server's own
engines are spawned, as in the tests that start servers.
"""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import forkserver, get_context, reduction
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

_PRELOADED = ["__main__", "tests.engine_adapter.vllm_engine.support.imported_vllm"]


def vllm_process(initializer: Callable[..., None], *arguments: Any) -> ProcessPoolExecutor:
    """A process that has imported vLLM; `initializer` is called in it first.

    Its environment is that of the session's first such process, prepared as for any engine. What
    torch reads of it when it is imported, such as the number of OpenMP's threads, `initializer`
    cannot change.
    """
    return ProcessPoolExecutor(1, _context(), initializer=initializer, initargs=arguments)


def fork_engines() -> None:
    """From now on the engines that vLLM starts in this process are forked, not spawned."""
    utils: Any = import_module("vllm.v1.engine.utils")
    utils.get_mp_context = _EngineContext
    _context()
    forkserver.ensure_running()  # it belongs to no engine


class _EngineContext(ForkServerContext):
    """Starts processes with the environment and the output of this one."""

    def __init__(self) -> None:
        super().__init__()
        self.set_forkserver_preload(_PRELOADED)

    class Process(ForkServerProcess):
        """A process that begins as a spawned one does: see `_run`."""

        def start(self) -> None:
            """See `multiprocessing.Process`."""
            process: Any = self
            of_parent = dict(os.environ), [_ParentFile(1), _ParentFile(2)]
            process._kwargs |= {"target": process._target, "of_parent": of_parent}
            process._target = _run
            super().start()


class _ParentFile:
    """An open file of the parent, which its child has under the same number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> Any:
        # The copy is passed on with the pickled process.
        return _open_again, (self._number, reduction.DupFd(self._number))  # type: ignore[attr-defined]


def _open_again(number: int, copy: Any) -> None:
    os.dup2(copy.detach(), number)


def _run(target: Callable[..., None], of_parent: Any, **arguments: Any) -> None:
    """Runs in the new process, whose files are its parent's already."""
    environment, _ = of_parent
    os.environ.clear()
    os.environ.update(environment)
    target(**arguments)


def _context() -> ForkServerContext:
    context = get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context
