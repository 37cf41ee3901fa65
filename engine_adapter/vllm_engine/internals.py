"""The internals of vLLM that Specgate overrides, reads, sets and changes, as data.

Read in vLLM 0.32.0 and 0.33.0. With `compat.NAMES`, everything that a new release can break: it is
read from top to bottom then (docs/upgrading-vllm.md).
"""

_RUNNER_HOOKS = (
    *("load_model", "get_kv_cache_spec", "initialize_kv_cache"),
    *("finish_requests", "update_requests"),
    *("execute_model", "sample_tokens", "sample", "take_draft_token_ids"),
    *("capture_model", "_dummy_sampler_run"),
)

HOOKS: dict[str, tuple[str, ...]] = {
    "Scheduler": (
        "add_request",
        "schedule",
        "update_from_output",
        "make_spec_decoding_stats",
        "_free_request",
    ),
    "MultiprocExecutor": ("_init_executor",),
    "RayExecutorV2": ("_init_executor", "_build_runtime_env", "_get_actor_resource_kwargs"),
    "RayWorkerProc": ("get_node_and_physical_gpu_ids", "initialize_worker"),
    "CPUModelRunner": _RUNNER_HOOKS,
    "GPUModelRunner": _RUNNER_HOOKS,
    "LoraState": ("make_lora_inputs",),
    "V2Sampler": ("get_logprobs_dims", "sample"),
    "ModelCudaGraphManager": ("_init_candidates",),
    "CacheOnlyAttentionBackend": ("get_builder_cls", "supports_batch_invariance"),
    "BaseSpeculator": ("init_cudagraph_manager", "capture", "propose"),
    "CPUWorker": ("init_device", "load_model", "initialize_from_config"),
    "GPUWorker": ("_make_model_runner", "load_model", "initialize_from_config"),
    "SpeculativeConfig": (
        "compose_draft_hf_overrides",
        "verify_equal_vocab_size_if_draft_model",
    ),
    "AttentionLayerBase": ("get_attn_backend", "get_kv_cache_spec"),
    "PrometheusStatLogger": ("record",),
    "GuidanceGrammar": (
        *("accept_tokens", "validate_tokens", "rollback", "fill_bitmask", "check_error"),
    ),
}
"""Class of `compat.NAMES` -> its methods that a subclass or a mixin of Specgate's overrides."""

_SCHEDULER_ATTRIBUTES = (
    *("requests", "running", "waiting", "get_request_counts", "scheduler_config", "max_model_len"),
    *("max_num_scheduled_tokens", "block_size", "max_num_running_reqs", "num_spec_tokens"),
    *("num_lookahead_tokens", "dynamic_sd_lookup", "_spec_decode_step_blocks"),
)
_RUNNER_ATTRIBUTES = (
    *("device", "model", "sampler", "rejection_sampler", "req_states", "max_model_len"),
    *("vllm_config", "model_config", "compilation_config", "parallel_config"),
    *("use_aux_hidden_state_outputs", "model_state", "attn_groups", "kv_cache_config"),
    *("kernel_block_sizes", "block_tables", "max_num_reqs", "max_num_tokens", "_dummy_run"),
    *("lora_config", "lora_state", "prompt_logprobs_worker", "_set_active_loras"),
    *("vocab_size", "mm_registry", "supports_mm_inputs", "reset_encoder_cache"),
)

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    # The gateway's process: the death of an engine, and the requests that it admits.
    "AsyncLLM": (
        "vllm_config",
        "input_processor",
        "engine_core",
        "output_handler",
        "_run_output_handler",
        "errored",
    ),
    "vllm.v1.engine.input_processor:InputProcessor": (
        "speculative_config",
        *("structured_outputs_config", "_validate_params"),
        "tokenizer",
    ),
    "vllm.v1.engine.core_client:MPClient": ("resources",),
    "vllm.v1.engine.core_client:BackgroundResources": ("engine_manager",),
    "vllm.v1.engine.utils:CoreEngineProcManager": ("processes",),
    "cpu_resource_utils": ("get_allowed_cpu_list", "get_visible_memory_node", "parse_id_list"),
    "vllm.utils.cpu_resource_utils:LogicalCPUInfo": ("id", "physical_core", "numa_node"),
    "PrometheusStatLogger": (
        *("_gauge_cls", "_counter_cls", "_histogram_cls", "_spec_decoding_cls"),
        *("_kv_connector_cls", "_ec_connector_cls", "_perf_metrics_cls"),
    ),
    # EngineCore's process: what a plan reads, what the counts read, where they leave.
    "EngineCore": ("scheduler",),
    "GuidanceBackend": (
        *("disable_any_whitespace", "disable_additional_properties"),
        *("ll_tokenizer", "vocab_size", "is_tokenizer_supported", "_build_ll_tokenizer"),
    ),
    "GuidanceGrammar": ("ll_matcher",),
    "StructuredOutputManager": (
        *("reasoner_cls", "enable_in_reasoning", "_create_grammar", "backend"),
    ),
    "vllm.v1.structured_output.request:StructuredOutputRequest": (
        *("grammar", "reasoning_ended", "structured_output_key"),
    ),
    "Scheduler": (*_SCHEDULER_ATTRIBUTES, "structured_output_manager"),
    "AsyncScheduler": _SCHEDULER_ATTRIBUTES,
    "vllm.v1.request:Request": (
        "request_id",
        "structured_output_request",
        "sampling_params",
        "num_tokens",
        "num_output_tokens",
        "max_tokens",
        "is_prefill_chunk",
        "next_decode_eligible_step",
        "spec_token_ids",
    ),
    "vllm.v1.core.sched.output:SchedulerOutput": (
        "scheduled_new_reqs",
        "num_scheduled_tokens",
        "total_num_scheduled_tokens",
        "scheduled_spec_decode_tokens",
        "scheduled_cached_reqs",
        "finished_req_ids",
        "scheduled_encoder_inputs",
        "has_structured_output_requests",
        "kv_cache_block_copies",
        "preempted_req_ids",
    ),
    "vllm.v1.core.sched.output:NewRequestData": (
        *("req_id", "block_ids", "num_computed_tokens", "prefill_token_ids", "sampling_params"),
        *("prompt_token_ids", "mm_features"),
    ),
    "vllm.v1.core.sched.output:CachedRequestData": (
        "req_ids",
        "new_block_ids",
        "num_computed_tokens",
    ),
    "vllm.v1.engine:EngineCoreOutputs": ("outputs", "scheduler_stats"),
    "vllm.v1.engine:EngineCoreOutput": ("request_id", "new_token_ids", "kv_transfer_params"),
    "vllm.v1.metrics.stats:SchedulerStats": ("kv_connector_stats",),
    "current_platform": ("ray_device_key",),
    "envs": ("environment_variables", "VLLM_USE_V2_MODEL_RUNNER"),
    "Executor": ("get_class",),
    "MultiprocExecutor": ("vllm_config",),
    "ray_executor_v2": ("RayWorkerProc", "ray"),
    "LoraState": ("lora_ids",),
    "v2_model_runner": (
        *("init_speculator", "Sampler", "sort_batch_req_ids", "ModelCudaGraphManager"),
    ),
    "ModelCudaGraphManager": ("vllm_config", "decode_query_len", "_capture_descs", "_candidates"),
    "CudaGraphManager": ("capture", "dispatch", "run_fullgraph"),
    "vllm.v1.worker.gpu.cudagraph_utils:BatchExecutionDescriptor": (
        *("num_tokens", "num_reqs", "cg_mode"),
    ),
    "AttentionGroup": (
        *("build_metadata_for_drafting", "build_metadata_for_cudagraph_capture"),
        *("kernel_block_size", "supports_draft_decode_metadata_update"),
        *("update_draft_decode_metadata", "get_metadata_builder"),
    ),
    # An assistant's layers read the KV of the target's.
    "vllm.model_executor.layers.attention.attention:Attention": (
        *("layer_name", "num_kv_heads", "head_size", "kv_sharing_target_layer_name"),
    ),
    "vllm.v1.attention.backend:AttentionMetadataBuilder": ("get_cudagraph_support",),
    "vllm.v1.worker.gpu.model_states.interface:ModelState": ("get_additional_cg_support",),
    "v2_gumbel": ("gumbel_sample",),
    "v2_cpu_model_runner": ("CPUModelRunner",),
    "v2_input_batch": ("get_num_sampled_and_rejected",),
    "vllm.v1.worker.gpu.states:RequestState": (
        *("max_num_reqs", "max_model_len", "vocab_size", "req_id_to_index", "index_to_req_id"),
        *("prompt_len", "prefill_len", "total_len", "num_computed_tokens_np"),
        *("all_token_ids", "draft_tokens"),
    ),
    "vllm.v1.worker.gpu.block_table:BlockTables": ("block_tables", "block_sizes", "num_blocks"),
    "vllm.v1.worker.gpu.input_batch:InputBatch": (
        *("req_ids", "num_reqs", "num_tokens", "num_draft_tokens_per_req"),
        *("idx_mapping", "idx_mapping_np", "input_ids", "logits_indices"),
        *("cu_num_logits", "cu_num_logits_np", "seq_lens", "seq_lens_cpu_upper_bound"),
        *("expanded_idx_mapping", "expanded_local_pos"),
    ),
    "V2Sampler": (
        *("req_states", "sampling_states", "logits_processors", "needs_logits_processing"),
        *("apply_sampling_params", "use_fp64_gumbel", "compute_nans", "trace_replay_state"),
    ),
    "vllm.v1.worker.gpu.sample.states:SamplingStates": (
        *("temperature", "top_k", "top_p", "min_p", "apply_min_p", "seeds"),
    ),
    "vllm.v1.worker.gpu.sample.logit_bias:LogitBiasState": ("use_logit_bias",),
    "vllm.v1.worker.gpu.sample.penalties:PenaltiesState": ("use_penalty",),
    "vllm.v1.worker.gpu.sample.bad_words:BadWordsState": ("num_bad_words",),
    "vllm.v1.worker.gpu.async_utils:AsyncOutput": ("model_runner_output",),
    # Model runner V2 on a CPU.
    "triton_utils": ("HAS_TRITON", "triton"),
    "vllm_config": ("HAS_TRITON",),
    # The trial of the target with a picture.
    "vllm.multimodal.registry:MultiModalRegistry": ("create_processor",),
    "vllm.multimodal.processing:BaseMultiModalProcessor": ("info", "dummy_inputs"),
    "vllm.multimodal.processing:BaseProcessingInfo": ("allowed_mm_limits", "parse_mm_data"),
    "vllm.multimodal.processing:BaseDummyInputsBuilder": ("get_dummy_text",),
    # The workers.
    "CPUWorker": ("vllm_config", "rank", "model_runner", "execute_model", "sample_tokens"),
    "GPUWorker": (
        *("vllm_config", "rank", "model_runner", "device", "peak_activation_memory"),
        *("execute_model", "sample_tokens"),
    ),
    "vllm.config.cache:CacheConfig": ("get_resolved_kv_cache_layout",),
    "vllm.v1.kv_cache_layout:KVCacheLayout": ("is_layer_compact",),
    "MemorySnapshot": ("free_memory", "torch_memory", "torch_allocated"),
    "CPUModelRunner": _RUNNER_ATTRIBUTES,
    "GPUModelRunner": _RUNNER_ATTRIBUTES,
    "AttentionLayerBase": ("kv_cache",),
    "dump_input": ("prepare_object_to_dump",),
    "model_registry": ("_run_in_subprocess",),
    "parallel_state": ("_EP", "_TP", "graph_capture"),
    "vllm.distributed.parallel_state:GroupCoordinator": ("broadcast",),
    "speculative": ("SpeculativeConfig",),
    # The patches of layers.
    "causal_conv1d": ("causal_conv1d_update_cpu",),
    "custom_ops": ("fused_sigmoid_gating_delta_rule_update_spec_cpu", "onednn_mm"),
    "gdn_attention": ("_spec_forward", "_unpacked_conv_weight"),
    "mamba_mixer2": ("causal_conv1d_update", "selective_state_update"),
    "RotaryEmbedding": ("forward_cpu",),
    "short_conv": ("causal_conv1d_update", "ShortConv"),
    "ssu_dispatch": ("selective_state_update",),
    "vllm.model_executor.models.qwen3_dflash:DFlashQwen3Model": (
        *("_normalize_context_k", "_k_norm_weights", "_rms_norm_eps"),
    ),
    "vllm.model_executor.models.qwen3_dspark:Qwen3DSparkForCausalLM": (
        *("markov_embed", "markov_bias"),
    ),
    "vllm.model_executor.models.qwen3_dflash2:DFlash2Qwen3ForCausalLM": (
        *("candidate_logits_processor", "compute_candidates"),
    ),
    "vllm.model_executor.models.qwen3_dflash2:CandidateSelector": (
        *("hidden_projection", "predecessor_codebook", "successor_codebook", "top_k"),
    ),
    "vllm.model_executor.models.qwen3_xpress:XPressRefinerHead": (
        *("hidden_cache", "in_proj", "mix_L", "mlp_down", "mlp_gate", "mlp_up", "rank", "topc"),
        *("vocab_size", "w1", "w2"),
    ),
}
"""Class or module -> the attributes of it that Specgate reads or sets.

A key is a name of `compat.NAMES`, or "module:class" where Specgate only meets instances. Every
attribute that a subclass or a mixin takes from `self` is here; of other objects, those that are
internal.
"""

SINCE = {"vllm.model_executor.models.qwen3_xpress:XPressRefinerHead": "0.33"}
"""Key of `ATTRIBUTES` -> the first release that has the class."""

PATCHES = {
    "admission.patch_admission": "AsyncLLM.input_processor.speculative_config",
    "admission.patch_constraint_check": "structured_outputs_config or _validate_params of "
    "AsyncLLM.input_processor",
    "async_on_cpu.patch_async_scheduling": "CpuPlatform.check_and_update_config",
    "batch_order.patch_batch_order": "v2_model_runner.sort_batch_req_ids, for a target with "
    "recurrent layers",
    "dflash_norms.patch_context_norms": "DFlashQwen3Model._normalize_context_k of a head on CPU",
    "engine_core.patch_engine_core": "EngineCore.specgate_*, the utility methods",
    "grammars.patch_grammar_compiler": "StructuredOutputManager._create_grammar",
    "fatal_dump.patch_fatal_dump": "dump_input.prepare_object_to_dump",
    "log_filters.silence_engine_death": "the logger of AsyncLLM's module",
    "log_filters.silence_parser_lines": "the loggers of the packages of ParserManager, "
    "ReasoningParserManager and ToolParserManager",
    "log_filters.silence_rejected_tokens": "the loggers of Scheduler and StructuredOutputManager",
    "lora_cpu.patch_lora_masking": "bgmv_expand, bgmv_expand_slice of lora_ops and punica_cpu",
    "prompt_logprobs.patch_prompt_logprobs": "LogprobsProcessor._update_prompt_logprobs of "
    "engine_logprobs",
    "token_texts.patch_token_texts": "convert_ids_list_to_tokens of engine_logprobs",
    "recurrent_layers.patch_recurrent_layers": "causal_conv1d_update and selective_state_update of "
    "mamba_mixer2, causal_conv1d_update and ShortConv.forward_native of short_conv, "
    "gdn_attention._spec_forward",
    "linear_input.patch_linear_input": "custom_ops.onednn_mm",
    "rotary_embedding.patch_rotary_embedding": "RotaryEmbedding.forward_cpu",
    "v2_kernels.patch_v2_kernels": "the kernels of `v2_kernels.twins`, in the modules v2_*; "
    "triton_utils.triton.next_power_of_2, v2_buffer_utils.UvaBackedTensor.copy_to_uva",
    "v2_kernels.patch_v2_runner": "gpu_worker.HAS_TRITON, on CPU with model runner V2",
    "triton_check.patch_triton_check": "vllm_config.HAS_TRITON, on CPU with model runner V2",
    "ray_on_cpu.patch_ray_device": "current_platform.ray_device_key, on CPU",
    "ray_on_cpu.patch_ray_worker": "ray_executor_v2.RayWorkerProc, while its actors are made",
    "model_inspection.patch_model_inspection": "model_registry._run_in_subprocess, in the gateway "
    "on CPU and in workers",
    "module_names.patch_cpu_runner": "v2_cpu_model_runner.CPUModelRunner, while the worker creates "
    "it",
    "module_names.patch_graph_manager": "v2_model_runner.ModelCudaGraphManager, while a runner "
    "gets its KV cache",
    "module_names.patch_mp_context": "engine_utils.get_mp_context, while the first process of "
    "EngineCore is made",
    "module_names.patch_init_speculator": "v2_model_runner.init_speculator, while a runner V2 is "
    "made",
    "module_names.patch_sampler": "v2_model_runner.Sampler, while a runner V2 loads its model",
    "module_names.patch_groups": "parallel_state._TP and _EP, while a draft model loads or runs",
    "module_names.patch_speculative_config": "speculative.SpeculativeConfig, while it makes a "
    "draft model's configuration",
}
"""Function of `patches` -> the object of vLLM's that it changes."""

PATCHED_CODE = (
    "vllm.config.speculative:SpeculativeConfig.__post_init__",
    "vllm.distributed.parallel_state:get_ep_group",
    "vllm.distributed.parallel_state:get_tp_group",
    "vllm.model_executor.models.registry:_LazyRegisteredModel.inspect_model_cls",
    "vllm.platforms.interface:Platform.ray_device_key",
    "vllm.v1.engine.core:EngineCore.preprocess_add_request",
    "vllm.v1.engine.core:EngineCoreProc._handle_client_request",
    "vllm.v1.engine.input_processor:InputProcessor._validate_params",
    "vllm.v1.engine.input_processor:InputProcessor.process_inputs",
    "vllm.v1.engine.output_processor:OutputProcessor.process_outputs",
    "vllm.v1.engine.utils:CoreEngineProcManager.__init__",
    "vllm.v1.executor.ray_executor_v2:RayExecutorV2._init_executor",
    "vllm.v1.structured_output.backend_guidance:GuidanceBackend.compile_grammar",
    "vllm.v1.structured_output:StructuredOutputManager.grammar_init",
    "vllm.v1.worker.cpu_worker:CPUWorker.init_device",
    "vllm.v1.worker.gpu.model_runner:GPUModelRunner.__init__",
    "vllm.v1.worker.gpu.model_runner:GPUModelRunner.load_model",
    "vllm.v1.worker.gpu.sample.sampler:Sampler.__call__",
    "vllm.v1.worker.gpu.sample.sampler:Sampler.sample",
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler:RejectionSampler.__call__",
)
"""Code, "module:name", that patches replace or that reads what they change.

`defects.DEFECTS` has that of the repairs.
"""

CONFIGURATIONS = {
    "attention_config": "vllm.config.attention:AttentionConfig",
    "cache_config": "vllm.config.cache:CacheConfig",
    "compilation_config": "vllm.config.compilation:CompilationConfig",
    "kv_cache_config": "vllm.v1.kv_cache_interface:KVCacheConfig",
    "lora_config": "vllm.config.lora:LoRAConfig",
    "model_config": "vllm.config.model:ModelConfig",
    "parallel_config": "vllm.config.parallel:ParallelConfig",
    "scheduler_config": "vllm.config.scheduler:SchedulerConfig",
    "speculative_config": "vllm.config.speculative:SpeculativeConfig",
    "structured_outputs_config": "vllm.config.structured_outputs:StructuredOutputsConfig",
    "vllm_config": "vllm.config.vllm:VllmConfig",
}
"""The names under which the code has vLLM's configurations, each with its class."""

MESSAGES = {
    "to be inspected": "vllm.model_executor.models.registry",
    "No common block size": "vllm.v1.worker.utils",
    "Unexpected: grammar rejected tokens": "vllm.v1.core.sched.scheduler",
    "Unexpected: grammar terminated or rejected draft": "vllm.v1.structured_output",
    "Failed to compile grammar": "vllm.v1.structured_output",
}
"""vLLM's messages whose text decides something, each with its module."""
