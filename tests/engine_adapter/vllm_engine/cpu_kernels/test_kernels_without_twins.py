"""Every kernel that vLLM's model runner V2 launches has a twin, or a known reason to have none."""

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from engine_adapter.vllm_engine.patches.v2_kernels import twins
from tests.engine_adapter.vllm_engine.support.interpreted import GPU

pytestmark = pytest.mark.needs_vllm

SHARED = "vllm.v1.worker.utils"
"""A module beside `GPU` whose kernels both runners launch."""

WITHOUT: dict[str, tuple[str, set[str]]] = {
    "cp_utils": ("context parallelism, not on CPU", {"_dcp_local_seq_lens_kernel"}),
    "metrics.logits": ("only with VLLM_COMPUTE_NANS_IN_LOGITS", {"_num_nans_kernel"}),
    "model_states.prompt_embeds": ("prompts as embeddings", {"_apply_prompt_embeds_kernel"}),
    "model_states.recoverssm": (
        "a way to store recurrent states that needs a GPU",
        {"_postprocess_recoverssm_align_kernel"},
    ),
    "sample.batch_shard": (
        "logits that are divided among the ranks of tensor parallelism",
        {
            *("_build_shard_plan_kernel", "_pack_sampler_output_kernel", "_pack_logprobs_kernel"),
            *("_unpack_gathered_output_kernel", "_unpack_logprobs_kernel"),
        },
    ),
    "sample.output": ("only with return_sampling_mask", {"_compact_sampling_mask_kernel"}),
    "sample.trace_replay": ("only with enable_trace_replay", {"_trace_replay_kernel"}),
    "sample.watermark": (
        "watermarks",
        {"_repeated_context_mask_kernel", "_philox_gumbel_kernel", "_draft_step_kernel"},
    ),
    "spec_decode.acceptance_estimator": (
        "adaptive verification, which measures steps of a GPU",
        {
            *("_accumulate_kernel", "_refit_kernel"),
            *("_local_max_sumexp_kernel", "_predict_kernel"),
        },
    ),
    "spec_decode.dflash.speculator": (
        "vLLM's own DFlash proposer",
        {"_prepare_dflash_inputs_kernel"},
    ),
    "spec_decode.dflash2.speculator": (
        "vLLM's own DFlash proposer",
        {"_selector_walk_kernel", "_cache_draft_logits_kernel"},
    ),
    "spec_decode.multi_module_mtp.speculator": (
        "vLLM's own MTP proposer",
        {
            *(
                "_prepare_input_buffers_kernel",
                "_prepare_input_hidden_states_and_embeddings_kernel",
            ),
            *("_pad_trailing_draft_slots_kernel", "_cache_inputs_kernel"),
            *("_shift_input_ids_kernel", "_shift_input_embeds_kernel"),
        },
    ),
    "spec_decode.ngram.speculator": (
        "vLLM's own n-gram proposer",
        {"_ngram_scan_kernel", "_ngram_finalize_kernel"},
    ),
    "spec_decode.rejection_sampler": (
        "vLLM's own verification",
        {"_gather_draft_sampled_kernel", "_flatten_sampled_kernel"},
    ),
    "spec_decode.rejection_sampler_utils": (
        "vLLM's own verification",
        {
            *("_compute_local_logits_stats_kernel", "_compute_cumulative_log_p_kernel"),
            *("_compute_local_residual_mass_kernel", "_rejection_kernel"),
            *("_resample_kernel", "_insert_resampled_kernel"),
        },
    ),
    "spec_decode.standalone_ar.speculator": (
        "vLLM's own draft models",
        {"_prepare_prefill_inputs_kernel"},
    ),
    "spec_decode.target_dependent_ar.speculator": (
        "vLLM's own EAGLE and MTP proposers",
        {
            *("_prepare_prefill_inputs_kernel", "_prepare_decode_inputs_kernel"),
            "_update_draft_inputs_kernel",
        },
    ),
    "spec_decode.xpress.kernels": (
        "vLLM's own proposer Xpress",
        {
            *("_xpress_add_argmax_partial_kernel", "_xpress_add_argmax_reduce_to_blk_kernel"),
            *("_xpress_latent_kernel", "_xpress_topc_argmax_to_blk_kernel"),
        },
    ),
}
"""Module below `GPU` -> why its kernels have no twin, and their names in any supported release."""


def launched_kernels() -> Iterator[tuple[str, str]]:
    """Module and name of each function of Triton's that the package or `SHARED` launches.

    Modules of the package have their names below `GPU`.
    """
    folder, shared = _file_of(GPU).parent, _file_of(SHARED)
    defined, launched = [], set()
    for path in [*sorted(folder.rglob("*.py")), shared]:
        below = path != shared
        module = ".".join(path.relative_to(folder).with_suffix("").parts) if below else SHARED
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                if any("triton." in ast.unparse(each) for each in node.decorator_list):
                    defined.append((module, node.name))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
                launched.add(ast.unparse(node.func.value).rpartition(".")[2])
    return ((module, name) for module, name in defined if name in launched)


def _file_of(module: str) -> Path:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def test_every_launched_kernel_has_a_twin_or_a_reason() -> None:
    with_twin = {(module.__name__.removeprefix(f"{GPU}."), name) for module, name, _ in twins()}
    known = {(module, name) for module, (_, names) in WITHOUT.items() for name in names}
    found = set(launched_kernels())
    assert len(found) > 40
    assert not with_twin & known
    assert found <= with_twin | known, "write a twin, or the reason why there is none"
    assert with_twin <= found
