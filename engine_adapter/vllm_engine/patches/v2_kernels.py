"""vLLM's model runner V2 on a CPU without Triton: twins in place of its kernels."""

from functools import partial
from typing import Any

import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.cpu_kernels import (
    block_tables,
    inputs,
    logits,
    logprobs,
    noise,
    thinking_budget,
)
from engine_adapter.vllm_engine.cpu_kernels.launch import CpuKernel, TwinKernel
from engine_adapter.vllm_engine.patches.triton_check import needs_twins, patch_triton_check

Row = tuple[Any, dict[str, TwinKernel]]
"""A module of vLLM's, and the twin of each of its kernels."""


def patch_v2_runner() -> None:
    """Lets a worker's process run V2 on a CPU, if it needs twins; else it changes nothing.

    Must run before the worker is made (`worker/worker.py`, `worker/v2_on_cpu.py`).
    """
    if needs_twins():
        # vLLM's attention in bfloat16 uses AMX where a CPU has it, and Linux ends a process that
        # has not asked for its registers (SIGILL).
        torch.cpu._init_amx()
        patch_triton_check()
        compat.gpu_worker.HAS_TRITON = True  # the worker asks too since 0.33
        patch_v2_kernels()


def patch_v2_kernels() -> None:
    """Puts each twin in its kernel's place, and the one helper of Triton that launches call.

    Raises `ImportError` if a kernel is gone or has other parameters than its twin.
    """
    compat.triton_utils.triton.next_power_of_2 = _next_power_of_2
    _share_memory()
    for module, name, twin in twins():
        kernel = getattr(module, name, None)
        if kernel is None:
            raise ImportError(f"vLLM {compat.installed_version()} has no {module.__name__}.{name}")
        if not isinstance(kernel, CpuKernel):
            setattr(module, name, CpuKernel(kernel, twin))


def twins() -> list[tuple[Any, str, TwinKernel]]:
    """Each kernel that has a twin: vLLM's module, its name there, and the twin."""
    table: list[Row] = [
        (
            compat.v2_input_batch,
            {
                "_prepare_prefill_inputs_kernel": inputs.prepare_prefill_inputs,
                "_prepare_pos_seq_lens_kernel": inputs.prepare_pos_seq_lens,
                "_combine_sampled_and_draft_tokens_kernel": inputs.combine_sampled_and_draft_tokens,
                "_get_num_sampled_and_rejected_kernel": inputs.get_num_sampled_and_rejected,
                "_post_update_kernel": inputs.post_update,
                "_post_update_num_computed_tokens_kernel": inputs.post_update_num_computed_tokens,
                "_expand_idx_mapping_kernel": inputs.expand_idx_mapping,
            },
        ),
        (
            compat.v2_mamba_hybrid,
            {
                "_scatter_num_accepted_kernel": inputs.scatter_num_accepted,
                "_fill_num_accepted_kernel": inputs.fill_num_accepted,
            },
        ),
        (compat.v2_rope, {"_prepare_rope_positions_kernel": inputs.prepare_rope_positions}),
        (
            compat.v2_prompt_logprob,
            {"_prompt_logprobs_token_ids_kernel": inputs.prompt_logprobs_token_ids},
        ),
        (compat.v2_buffer_utils, {"_apply_write_kernel": block_tables.apply_write}),
        (
            compat.v2_block_table,
            {
                "_gather_block_tables_kernel": block_tables.gather_block_tables,
                "_compute_slot_mappings_kernel": block_tables.compute_slot_mappings,
            },
        ),
        (compat.v2_worker_utils, {"_zero_kv_blocks_kernel": block_tables.zero_kv_blocks}),
    ]
    table += _sampling_twins()
    return [(module, name, twin) for module, rows in table for name, twin in rows.items()]


def _sampling_twins() -> list[Row]:
    # vLLM 0.33 mixes the step of a draft into its seed.
    by_step = hasattr(compat.v2_gumbel, "spec_step_seed")
    return [
        (
            compat.v2_gumbel,
            {
                "_temperature_kernel": logits.temperature,
                "_gumbel_sample_kernel": partial(noise.gumbel_sample, BY_STEP=by_step),
            },
        ),
        (compat.v2_min_p, {"_min_p_kernel": logits.min_p}),
        (
            compat.v2_penalties,
            {"_penalties_kernel": logits.penalties, "_bincount_kernel": logits.bincount},
        ),
        (compat.v2_logit_bias, {"_bias_kernel": logits.bias}),
        (compat.v2_bad_words, {"_bad_words_kernel": logits.bad_words}),
        (
            compat.v2_thinking_budget,
            {
                "_update_committed_marker_cache_kernel": (
                    thinking_budget.update_committed_marker_cache
                ),
                "_thinking_budget_kernel": thinking_budget.thinking_budget,
            },
        ),
        (
            compat.v2_structured_outputs,
            {"_apply_grammar_bitmask_kernel": logits.grammar_bitmask},
        ),
        (
            compat.v2_logprob,
            {
                "_topk_log_softmax_kernel": logprobs.topk_log_softmax,
                "_ranks_kernel": logprobs.ranks,
                "_fill_logprob_token_ids_kernel": logprobs.fill_logprob_token_ids,
            },
        ),
    ]


def _next_power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _share_memory() -> None:
    """Lets a device that is the CPU read the values of requests where they are written.

    vLLM copies 16 such tensors in each step. Kernels only read them, and none runs while one is
    written.
    """
    backed_tensor = compat.v2_buffer_utils.UvaBackedTensor
    copy_to_uva = backed_tensor.copy_to_uva
    if copy_to_uva.__module__ == __name__:
        return

    def share(backed: Any, n: int | None = None) -> Any:
        if not backed.gpu.is_cpu:
            return copy_to_uva(backed, n)
        backed.gpu = backed.cpu if n is None else backed.cpu[:n]
        return backed.gpu

    backed_tensor.copy_to_uva = share
