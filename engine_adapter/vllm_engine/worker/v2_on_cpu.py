"""vLLM's own worker for CPUs, ready for its model runner V2: an engine's argument `worker_cls`.

Stock vLLM's process imports it before it makes the runner. Specgate's worker is `worker.CPUWorker`.
"""

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.v2_kernels import patch_v2_runner

CPUWorker = compat.CPUWorker
"""Its module makes streams and pinned memory do nothing, so it is imported before the kernels'."""

patch_v2_runner()
