"""vLLM's kernels of gated delta networks on a CPU, written in PyTorch for any dtype.

vLLM's own need bfloat16. With these, an engine computes in float32, so a text can be compared
exactly. The recurrence is that of Gated Delta Networks, https://arxiv.org/abs/2412.06464, as
transformers has it (`torch_recurrent_gated_delta_rule`).
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional


def compute_in_any_dtype(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Replaces the kernels in this process; must run before a model is made.

    Args:
        replace: sets an attribute; `setattr` of a `pytest.MonkeyPatch` in a process that
            other tests use.
    """
    from engine_adapter.vllm_engine import compat

    ops, module = compat.custom_ops, compat.gdn_attention
    replace(ops, "fused_gdn_gating_cpu", gates)
    replace(ops, "chunk_gated_delta_rule_cpu", read_prompts)
    replace(ops, "fused_sigmoid_gating_delta_rule_update_cpu", read_one_token)
    replace(ops, "fused_sigmoid_gating_delta_rule_update_spec_cpu", verify)
    # The module asserts bfloat16, and has faster convolutions for it on some machines.
    replace(module, "torch", _Torch())
    replace(module, "is_arm_bf16", lambda: False)


class _Torch:
    """`torch` for that module: float32 is the dtype that it asserts."""

    bfloat16 = torch.float32
    cpu = SimpleNamespace(
        _is_amx_tile_supported=lambda: False, _is_avx512_bf16_supported=lambda: False
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def gates(
    A_log: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The logarithm of the decay and the rate of each token and head: both [T, heads]."""
    return -A_log.exp() * functional.softplus(a.float() + dt_bias), b.float().sigmoid()


def _normalized(x: torch.Tensor) -> torch.Tensor:
    x = x.float()
    result: torch.Tensor = x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
    return result


def recur(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    rate: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One row's tokens.

    Args:
        state: [heads, key size, value size].
        q, k: [T, key heads, key size].
        v: [T, heads, value size].
        decay, rate: [T, heads], of `gates`.

    Returns:
        The outputs [T, heads, value size], and the state after each token.
    """
    repeats = v.shape[1] // k.shape[1]
    q = _normalized(q).repeat_interleave(repeats, dim=1) * q.shape[-1] ** -0.5
    k = _normalized(k).repeat_interleave(repeats, dim=1)
    outputs, states = [], []
    for t in range(len(v)):
        state = state * decay[t].exp()[:, None, None]
        known = (state * k[t][:, :, None]).sum(1)
        state = state + k[t][:, :, None] * ((v[t].float() - known) * rate[t][:, None])[:, None]
        outputs.append((state * q[t][:, :, None]).sum(1))
        states.append(state)
    return torch.stack(outputs), torch.stack(states)


def read_prompts(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor,
    output_final_state: bool,
    cu_seqlens: torch.Tensor,
    head_first: bool,
    use_qk_l2norm_in_kernel: bool,
    initial_state_indices: torch.Tensor,
) -> tuple[torch.Tensor, None]:
    """Rows of several tokens; each leaves the state after its last one."""
    out = torch.empty_like(value)
    for row, slot in enumerate(initial_state_indices.tolist()):
        own = slice(int(cu_seqlens[row]), int(cu_seqlens[row + 1]))
        made, states = recur(
            initial_state[slot], query[0, own], key[0, own], value[0, own], g[own], beta[own]
        )
        out[0, own], initial_state[slot] = made, states[-1]
    return out, None


def read_one_token(
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    initial_state_source: torch.Tensor,
    initial_state_indices: torch.Tensor,
    cu_seqlens: torch.Tensor,
    use_qk_l2norm_in_kernel: bool,
) -> torch.Tensor:
    """Rows of one token."""
    decay, rate = gates(A_log, a, b, dt_bias)
    out, _ = read_prompts(
        *(q, k, v, decay, rate, initial_state_source, True, cu_seqlens, False, True),
        initial_state_indices,
    )
    return out.transpose(0, 1)


def verify(
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    initial_state_source: torch.Tensor,
    spec_state_indices: torch.Tensor,
    num_accepted_tokens: torch.Tensor,
    cu_seqlens: torch.Tensor,
    use_qk_l2norm_in_kernel: bool,
) -> torch.Tensor:
    """Rows that begin at the state after their last accepted token, and leave one after each."""
    decay, rate = gates(A_log, a, b, dt_bias)
    out = torch.empty_like(v)
    for row, slots in enumerate(spec_state_indices):
        own = slice(int(cu_seqlens[row]), int(cu_seqlens[row + 1]))
        begin = initial_state_source[slots[int(num_accepted_tokens[row]) - 1]]
        made, states = recur(begin, q[own], k[own], v[own], decay[own], rate[own])
        out[own], initial_state_source[slots[: len(states)].long()] = made, states
    return out
