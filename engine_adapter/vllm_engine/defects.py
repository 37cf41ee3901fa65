"""Defects of vLLM that Specgate works around, as data.

A new release is compared with this table (docs/upgrading-vllm.md): a defect that it mends gets its
release, the repair then runs only before it, and is deleted when no supported release needs it.
"""

from dataclasses import dataclass

_PULL = "https://github.com/vllm-project/vllm/pull/"
_ISSUE = "https://github.com/vllm-project/vllm/issues/"


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect of vLLM.

    Attributes:
        effect: what vLLM does.
        code: vLLM's code that does it, "module:name".
        repair: our code, "file:name" below engine_adapter/vllm_engine.
        test: a test of what users see, "file::name" below tests/engine_adapter/vllm_engine. It
            fails without the repair.
        watch: the same, of a test that fails when vLLM is mended; empty if there is none.
        upstream: an issue or a pull request; empty if none is known.
        mended_in: the first release (major.minor) without the defect.
    """

    effect: str
    code: tuple[str, ...]
    repair: str
    test: str
    watch: str = ""
    upstream: str = ""
    mended_in: str = ""


DEFECTS = {
    "lora_without_adapter": Defect(
        "on CPU, a row without an adapter gets the product of the last one",
        (
            "vllm.lora.ops.torch_ops.lora_ops:bgmv_expand",
            "vllm.lora.ops.torch_ops.lora_ops:bgmv_expand_slice",
        ),
        "patches/lora_cpu.py:patch_lora_masking",
        "patches/test_lora_cpu.py::test_rows_without_an_adapter_stay_as_they_were",
        watch="patches/test_lora_cpu.py::test_vllms_own_operation_has_the_defect",
        upstream=_PULL + "48421",
        mended_in="0.33",
    ),
    "gated_delta_short_rows": Defect(
        "on CPU, the convolution of a gated delta network takes a row with fewer drafts than a row "
        "can have for one with all of them",
        ("vllm.model_executor.layers.mamba.ops.cpu.gdn_attention:_spec_forward",),
        "patches/recurrent_layers.py:verify_gated_delta",
        "patches/test_recurrent_layers.py::test_a_gated_delta_layer_follows_accepted_drafts",
        watch="patches/test_recurrent_layers.py::test_vllms_own_gated_delta_layer_has_the_defect",
        mended_in="0.33",
    ),
    "mamba_2_drafts": Defect(
        "on CPU, Mamba 2 continues from a state that does not follow the accepted drafts",
        (
            "vllm.model_executor.layers.mamba.ops.cpu.causal_conv1d:causal_conv1d_update_cpu",
            "vllm.model_executor.layers.mamba.ops.ssu_dispatch:CPUSSUBackend",
        ),
        "patches/recurrent_layers.py:update_states",
        "patches/test_recurrent_layers.py::test_the_recurrence_follows_accepted_drafts",
    ),
    "short_convolution_drafts": Defect(
        "on CPU, short convolutions have no rows with drafts",
        ("vllm.model_executor.layers.mamba.short_conv:ShortConv.forward_native",),
        "patches/recurrent_layers.py:update_convolution",
        "patches/test_recurrent_layers.py::test_a_state_follows_accepted_drafts",
    ),
    "prompts_before_tokens": Defect(
        "a prompt as long as a row with all drafts stands before rows that read one token, whose "
        "recurrent states are then those before their last accepted tokens",
        ("vllm.v1.worker.gpu.model_runner:sort_batch_req_ids",),
        "patches/batch_order.py:patch_batch_order",
        "test_hybrid.py::test_a_prompt_as_long_as_a_verified_row_changes_no_text",
        watch="patches/test_batch_order.py::test_vllms_own_order_has_the_defect",
    ),
    "rotary_heads": Defect(
        "on CPU, queries and keys that are split into heads are rotated by wrong positions",
        ("vllm.model_executor.layers.rotary_embedding.base:RotaryEmbedding.forward_cpu",),
        "patches/rotary_embedding.py:patch_rotary_embedding",
        "patches/test_rotary_embedding.py::test_each_head_is_turned_by_its_tokens_position",
        watch="patches/test_rotary_embedding.py::test_vllms_own_kernel_has_the_defect",
    ),
    "transposed_input": Defect(
        "on CPU, a linear layer refuses a transposed input, so Llama 4's first picture ends the "
        "engine",
        ("vllm._custom_ops:onednn_mm",),
        "patches/linear_input.py:patch_linear_input",
        "patches/test_linear_input.py::test_a_product_is_that_of_pytorch",
        watch="patches/test_linear_input.py::test_vllms_own_product_has_the_defect",
    ),
    "whole_prompts": Defect(
        "where attention reads whole prompts only, a step gets room for the longest, and the "
        "scheduler keeps a limit that is lower or higher",
        ("vllm.platforms.cpu:CpuPlatform.check_and_update_config",),
        "gateway/arguments.py:engine_config",
        "gateway/test_preflight_layers.py::"
        "test_the_schedulers_limit_is_the_batchs_where_prompts_are_read_whole",
    ),
    "wide_masks": Defect(
        "the mask of a tokenizer with more tokens than the target has does not fit the worker's "
        "buffer, which ends the engine",
        ("vllm.v1.worker.gpu.structured_outputs:StructuredOutputsWorker.apply_grammar_bitmask",),
        "worker/constraints.py:cut_mask",
        "test_mtp_limits.py::test_drafts_follow_the_constraint_of_their_request",
    ),
    "context_norms": Defect(
        "on CPU, the keys of a DFlash head's context have the first layer's norm in every layer",
        ("vllm.model_executor.models.qwen3_dflash:DFlashQwen3Model._normalize_context_k",),
        "patches/dflash_norms.py:patch_context_norms",
        "patches/test_dflash_norms.py::test_each_layer_has_its_own_weights",
        watch="patches/test_dflash_norms.py::test_vllms_own_kernel_has_the_defect",
    ),
    "causal_blocks": Defect(
        "`sliding_window_non_causal` of a head in the format of speculators is about all layers",
        ("vllm.transformers_utils.configs.speculators.algos:update_dflash",),
        "worker/drafting/draft_config.py:_restore_causality",
        "worker/drafting/test_draft_config.py::"
        "test_layers_without_a_window_are_not_causal_in_the_format_of_speculators",
        upstream=_PULL + "56692",
    ),
    "layer_types": Defect(
        "Step 3.5's MTP layers have no kind of attention, which ends the start",
        ("vllm.model_executor.models.step3p5:Step3p5DecoderLayer",),
        "worker/drafting/draft_config.py:_restore_layer_types",
        "worker/drafting/test_draft_config.py::test_mtp_layers_have_their_kinds_of_attention",
        watch="worker/drafting/test_draft_config.py::test_vllms_own_configuration_has_the_defect",
        upstream=_ISSUE + "40000",
        mended_in="0.33",
    ),
    "head_by_path": Defect(
        'a model is taken for a head if its path has a word such as "eagle3"',
        ("vllm.config.speculative:SpeculativeConfig.__post_init__",),
        "worker/drafting/draft_config.py:DraftConfig.__setattr__",
        "worker/drafting/test_draft_config.py::"
        "test_a_word_in_the_path_makes_no_head_of_a_draft_model",
    ),
    "padded_vocabulary": Defect(
        "a draft model whose vocabulary is padded to another size is refused",
        ("vllm.config.speculative:SpeculativeConfig.verify_equal_vocab_size_if_draft_model",),
        "worker/drafting/draft_config.py:DraftConfig.verify_equal_vocab_size_if_draft_model",
        "test_hazards.py::test_a_draft_model_with_a_padded_vocabulary_is_the_same_tokenizer",
        upstream=_PULL + "42775",
    ),
    "placeholder_drafts": Defect(
        "a row that resumes, or whose prompt but one token is cached, is padded with drafts that "
        "count",
        ("vllm.v1.core.sched.scheduler:Scheduler.schedule",),
        "core/scheduler.py:SpecgateScheduler.__init__",
        "test_hazards.py::test_a_prefix_hit_with_one_token_left_is_not_padded_with_drafts",
    ),
    "min_p_and_logit_bias": Defect(
        "requests with `min_p` or `logit_bias` are refused as soon as an engine speculates",
        ("vllm.sampling_params:SamplingParams._validate_spec_decode",),
        "patches/admission.py:patch_admission",
        "test_sampling.py::test_logit_bias_bans_and_forces_tokens",
        upstream=_ISSUE + "42744",
    ),
    "adapters_of_drafts": Defect(
        "a step in which a row with drafts has an adapter fails",
        ("vllm.v1.worker.gpu.lora_utils:LoraState.make_lora_inputs",),
        "worker/adapters.py:RowAdapters",
        "test_lora.py::test_the_text_is_that_of_stock_vllm_with_the_same_adapter",
    ),
    "prompt_logprobs_of_adapters": Defect(
        "log probabilities of a prompt have the adapters of other rows",
        ("vllm.v1.worker.gpu.sample.prompt_logprob:PromptLogprobsWorker.compute_prompt_logprobs",),
        "worker/adapters.py:PromptAdapters",
        "test_lora.py::"
        "test_echoed_log_probabilities_beside_other_requests_are_those_of_the_own_adapter",
    ),
    "prompt_logprobs": Defect(
        "the log probabilities of a prompt are decoded in one piece, on the event loop",
        ("vllm.v1.engine.logprobs:LogprobsProcessor._update_prompt_logprobs",),
        "patches/prompt_logprobs.py:patch_prompt_logprobs",
        "patches/test_prompt_logprobs.py::test_the_pieces_are_what_vllm_decodes_at_once",
    ),
    "token_texts": Defect(
        "every alternative of a log probability is decoded alone, on the event loop",
        ("vllm.v1.engine.logprobs:LogprobsProcessor",),
        "patches/token_texts.py:patch_token_texts",
        "patches/test_token_texts.py::test_vllms_texts_are_as_before",
    ),
    "fatal_dump": Defect(
        "the log of a failed step has stop strings, schemas and predictions of its requests",
        ("vllm.logging_utils.dump_input:prepare_object_to_dump",),
        "patches/fatal_dump.py:patch_fatal_dump",
        "patches/test_fatal_dump.py::test_the_dump_has_sizes_only",
        upstream=_ISSUE + "47364",
    ),
    "compiler_panics": Defect(
        "a panic while a grammar is compiled ends EngineCore",
        ("vllm.v1.structured_output:StructuredOutputManager._create_grammar",),
        "patches/grammars.py:patch_grammar_compiler",
        "patches/test_grammars.py::test_a_panic_is_the_reason_why_a_request_fails",
        watch="patches/test_grammars.py::test_a_panic_is_the_reason_why_a_request_fails",
    ),
    "failed_matcher": Defect(
        "a matcher that has failed ends its text as if it were complete",
        ("vllm.v1.structured_output.backend_guidance:GuidanceGrammar",),
        "core/constrained.py:BoundedGrammar",
        "core/test_constrained.py::"
        "test_an_ambiguous_grammar_fails_with_its_reason_and_does_not_end_its_text",
    ),
    "reasoning_ended_by_prompt": Defect(
        "in an answer that is not streamed, reasoning that the prompt has ended is not noticed",
        ("vllm.parser.abstract_parser:Parser",),
        "gateway/output_parser.py:VllmParser.whole",
        "gateway/test_parsing.py::test_a_prompt_can_have_ended_the_reasoning",
    ),
    "ray_on_cpu": Defect(
        "the CPU platform has no device for Ray",
        ("vllm.platforms.cpu:CpuPlatform",),
        "patches/ray_on_cpu.py:patch_ray_device",
        "core/test_ray_executor.py::test_the_ranks_are_actors_of_ray",
    ),
    "dbrx_weights": Defect(
        "the weights of DBRX cannot be loaded",
        ("vllm.model_executor.models.dbrx:DbrxModel.load_weights",),
        "gateway/preflight.py:UNLOADABLE",
        "architectures/test_table.py::test_what_the_table_calls_refused_is_refused",
        upstream=_ISSUE + "49004",
    ),
}
"""Name -> the defect."""
