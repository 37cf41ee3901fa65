"""Processes for engines that tests step by hand.

They are forked from one process of the test session that has imported vLLM: the import takes ten
seconds, and most of these engines run for less. The server's own engines are spawned.
"""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

_PRELOADED = ["tests.engine_adapter.vllm_engine.support.imported_vllm"]


def vllm_process(initializer: Callable[..., None], *arguments: Any) -> ProcessPoolExecutor:
    """A process that has imported vLLM; `initializer` is called in it first.

    Its environment is that of the session's first such process, prepared as for any engine. What
    torch reads of it when it is imported, such as the number of OpenMP's threads, `initializer`
    cannot change.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return ProcessPoolExecutor(1, context, initializer=initializer, initargs=arguments)
