"""Imports vLLM as an engine's process does. Only a process of `processes` imports this module."""

from engine_adapter.seam.config import EngineConfig
from engine_adapter.vllm_engine.gateway.arguments import prepare_environment

prepare_environment(EngineConfig("demo", "demo", ()))

import vllm.v1.engine.core  # noqa: E402
import vllm.v1.worker.cpu_worker  # noqa: E402
import vllm.v1.worker.gpu.model_runner  # noqa: E402, F401
