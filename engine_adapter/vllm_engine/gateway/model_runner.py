"""vLLM's model runner V2: how its steps are scheduled, and the method under which it speculates.

Specgate's hooks are in V2 only. vLLM would choose the deprecated V1 on a CPU, so the environment
names V2 for all processes of an engine (`arguments.prepare_environment`).
"""

from collections.abc import Mapping
from typing import Any

from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.vllm_engine import compat

VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


def check_variable(environment: Mapping[str, str]) -> None:
    """Raises `EngineConfigError` if the environment asks for model runner V1."""
    value = environment.get(VARIABLE, "1")
    if value.lower() not in ("1", "true"):
        raise EngineConfigError(
            VARIABLE,
            f"must be 1 or not set, got {value}: Specgate has no hooks in vLLM's model runner V1",
        )


def scheduling(arguments: Mapping[str, Any]) -> str:
    """How steps are scheduled, for the line that says that the engine starts: see `is_async`."""
    return f"async scheduling {'on' if is_async(arguments) else 'off'}"


def is_async(arguments: Mapping[str, Any]) -> bool:
    """Whether steps are scheduled asynchronously: by default on a GPU, as in vLLM.

    On a CPU nothing runs beside the main thread, so there it must be asked for.

    Args:
        arguments: vLLM's engine arguments, as the user gives them.
    """
    value = arguments.get("async_scheduling")
    return not compat.current_platform.is_cpu() if value is None else bool(value)


def speculative_config(capacity: int, *, is_async: bool) -> dict[str, Any]:
    """vLLM's configuration under which Specgate drafts; vLLM's own drafter of it is never made.

    V2 refuses a class of one's own, and takes these methods without a model. Only the latter may
    be scheduled asynchronously.

    Args:
        capacity: the most drafts of a row.
        is_async: steps are scheduled asynchronously.
    """
    method = "ngram_gpu" if is_async else "ngram"
    lookup = {"prompt_lookup_min": 1, "prompt_lookup_max": 1}
    return {"method": method, "num_speculative_tokens": capacity, **lookup}
