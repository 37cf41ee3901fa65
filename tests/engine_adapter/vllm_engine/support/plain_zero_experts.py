"""The router of LongCat's experts, of which some return their input, in PyTorch.

vLLM's calls an operation for GPUs. A token's experts are those with the largest probabilities after
a bias; their weights are the probabilities (LongCat-Flash Technical Report, arXiv 2509.01322,
section 2.1).
"""

from typing import Any

import torch

from tests.engine_adapter.vllm_engine.support.hidden_amx import (
    hide_amx,
    hide_amx_and_mend_rotary_embeddings,
)


def route_on_cpu() -> None:
    """Replaces the router in this process, and hides AMX."""
    hide_amx()
    _replace_router()


def route_on_cpu_and_mend_rotary_embeddings() -> None:
    """The same for stock vLLM."""
    hide_amx_and_mend_rotary_embeddings()
    _replace_router()


def _replace_router() -> None:
    from vllm.model_executor.layers.fused_moe.router import zero_expert_router

    router_class: Any = zero_expert_router.ZeroExpertRouter
    router_class._compute_routing = _compute_routing


def _compute_routing(
    router: Any,
    hidden_states: torch.Tensor,
    router_logits: torch.Tensor,
    indices_type: torch.dtype | None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights and the experts of each token, [T, top_k]; keeps what the others return."""
    probabilities = router_logits.float().softmax(dim=-1)
    experts = (probabilities + router.e_score_correction_bias).topk(router.top_k).indices
    weights = probabilities.gather(1, experts) * router.routed_scaling_factor
    is_zero = experts >= router.num_logical_experts
    router._zero_expert_output = hidden_states * (weights * is_zero).sum(dim=-1, keepdim=True)
    weights, experts = weights.masked_fill(is_zero, 0), experts.masked_fill(is_zero, 0)
    return weights, experts.to(indices_type or torch.int32)
