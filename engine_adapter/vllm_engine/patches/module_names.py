"""Names in vLLM's modules that are replaced while vLLM's own code runs."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.context import BaseContext
from typing import Any

from engine_adapter.vllm_engine import compat


def patch_cpu_runner(runner: type) -> AbstractContextManager[None]:
    """Within it, vLLM's CPU worker creates a `runner`, a subclass of vLLM's."""
    return _replaced(compat.v2_cpu_model_runner, CPUModelRunner=runner)


def patch_mp_context(context: BaseContext) -> AbstractContextManager[None]:
    """Within it, vLLM starts the processes of EngineCore in `context`."""
    return _replaced(compat.engine_utils, get_mp_context=lambda: context)


def patch_init_speculator(speculator: Any) -> AbstractContextManager[None]:
    """Within it, a model runner gets `speculator` instead of one of vLLM's."""
    return _replaced(compat.v2_model_runner, init_speculator=lambda *_: speculator)


def patch_sampler(sampler: type) -> AbstractContextManager[None]:
    """Within it, a model runner makes a `sampler`, a subclass of vLLM's, as its plain one."""
    return _replaced(compat.v2_model_runner, Sampler=sampler)


def patch_graph_manager(make_manager: Callable[..., Any]) -> AbstractContextManager[None]:
    """Within it, a model runner calls `make_manager` for the manager of the target's graphs.

    `make_manager` gets the arguments of vLLM's `ModelCudaGraphManager`.
    """
    return _replaced(compat.v2_model_runner, ModelCudaGraphManager=make_manager)


def patch_groups(group: Any) -> AbstractContextManager[None]:
    """Within it, vLLM's layers are split over `group`, a tensor-parallel group of vLLM's.

    So are their experts, if the target has none: vLLM makes no group for them then.
    """
    state = compat.parallel_state
    return _replaced(state, _TP=group, _EP=state._EP or group)


def patch_speculative_config(config: type) -> AbstractContextManager[None]:
    """Within it, vLLM's `SpeculativeConfig` calls the static methods of `config`, a subclass.

    It calls them by the name of the class, so otherwise the subclass does not override them.
    """
    return _replaced(compat.speculative, SpeculativeConfig=config)


@contextmanager
def _replaced(module: Any, **values: Any) -> Iterator[None]:
    names = vars(module)
    originals = {name: names[name] for name in values}
    names.update(values)
    try:
        yield
    finally:
        names.update(originals)
