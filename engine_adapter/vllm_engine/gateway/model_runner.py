"""vLLM's model runners: which one the engine has, and what is refused on V2.

V2 is asked for as in vLLM, with `VLLM_USE_V2_MODEL_RUNNER=1`. docs/model-runner-v2.md says what is
ported to it; a configuration that is not must not start, since nothing has shown its texts.
"""

from collections.abc import Mapping
from typing import Any

from engine_adapter.config import EngineConfig
from engine_adapter.errors import EngineConfigError
from engine_adapter.vllm_engine import compat

VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


def is_v2() -> bool:
    """Whether V2 is asked for."""
    return bool(compat.envs.VLLM_USE_V2_MODEL_RUNNER)


def name(arguments: Mapping[str, Any]) -> str:
    """The runner's name and its way of scheduling, to be read; see `is_async`."""
    version, scheduling = "V2" if is_v2() else "V1", "on" if is_async(arguments) else "off"
    return f"{version} model runner, async scheduling {scheduling}"


def is_async(arguments: Mapping[str, Any]) -> bool:
    """Whether steps are scheduled asynchronously.

    By default they are not: vLLM does not do it on a CPU, and V1 cannot.

    Args:
        arguments: vLLM's engine arguments, as the user gives them.

    Raises:
        EngineConfigError: V1 is to schedule asynchronously, or V2 with several ranks
            or engines.
    """
    is_wanted = bool(arguments.get("async_scheduling"))
    if is_wanted and not is_v2():
        raise EngineConfigError(
            "async_scheduling",
            "must be off on vLLM's model runner V1, where drafts are merged on the CPU after each "
            f"step; set {VARIABLE}=1 for V2",
        )
    for name, plural in (("tensor_parallel_size", "ranks"), ("data_parallel_size", "engines")):
        if is_wanted and int(arguments.get(name) or 1) > 1:
            reason = f"not yet on vLLM's model runner V2 with several {plural}; leave it out"
            raise EngineConfigError("async_scheduling", reason)
    return is_wanted


def speculative_config(capacity: int, is_async: bool = False) -> dict[str, Any]:
    """vLLM's configuration under which Specgate drafts; vLLM's own drafter of it is never made.

    Args:
        capacity: the most drafts of a row.
        is_async: steps are scheduled asynchronously.
    """
    if is_v2():
        # V2 refuses a class of one's own, and takes these methods without a model. Only the latter
        # may be scheduled asynchronously.
        method = "ngram_gpu" if is_async else "ngram"
        lookup = {"prompt_lookup_min": 1, "prompt_lookup_max": 1}
        return {"method": method, "num_speculative_tokens": capacity, **lookup}
    return {
        "method": "custom_class",
        "model": "engine_adapter.vllm_engine.worker.dispatch.ProposerDispatch",
        "num_speculative_tokens": capacity,
    }


def check_settings(config: EngineConfig) -> None:
    """Checks an engine on V2 for what is not ported; reads no model.

    Raises:
        EngineConfigError: an argument is not ported, or the platform is a GPU.
    """
    if not is_v2():
        return
    if not compat.current_platform.is_cpu():
        raise EngineConfigError(VARIABLE, _reason("a GPU"))
    if config.arguments.get("enforce_eager") is False:
        raise EngineConfigError("enforce_eager", _reason("compiled models"))


def _reason(what: str) -> str:
    return f"not yet on vLLM's model runner V2: {what}; unset {VARIABLE}, and the engine has V1"
