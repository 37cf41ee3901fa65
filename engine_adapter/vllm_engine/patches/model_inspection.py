"""Where vLLM inspects the classes of models.

Once for each class on a machine it starts a process that imports vLLM, for ten to twenty seconds,
since the import of a model's module could initialize CUDA. In a container each start is the first.
"""

from collections.abc import Callable
from typing import Any

from engine_adapter.vllm_engine import compat


def patch_model_inspection() -> None:
    """Lets this process inspect classes itself. It must have no GPU, or have initialized it."""
    compat.model_registry._run_in_subprocess = _run_here


def _run_here(inspect: Callable[[], Any]) -> Any:
    return inspect()
