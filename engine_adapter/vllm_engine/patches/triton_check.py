"""vLLM's check for Triton, on a CPU where twins stand for the kernels of its model runner V2."""

from engine_adapter.vllm_engine import compat


def needs_twins() -> bool:
    """Whether this process has V2 on a CPU for which Triton has no backend.

    V2 must be asked for with `VLLM_USE_V2_MODEL_RUNNER=1`.
    """
    is_v2 = compat.envs.VLLM_USE_V2_MODEL_RUNNER and compat.current_platform.is_cpu()
    return bool(is_v2) and not compat.triton_utils.HAS_TRITON


def patch_triton_check() -> None:
    """Lets this process make configurations with V2, if it needs twins; else it changes nothing.

    vLLM checks a configuration wherever it makes one or changes it: in the gateway's process, in
    EngineCore after its workers have started, and in each worker.
    """
    if needs_twins():
        compat.vllm_config.HAS_TRITON = True
