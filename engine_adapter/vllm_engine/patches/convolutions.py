"""Convolutions of recurrent layers on a CPU: their state follows accepted drafts only.

A state is the last inputs of the convolution. After a step that read drafts it must begin at the
last one that was accepted. In vLLM the layers of Mamba 2 and the short convolutions ignore how many
were; those of gated delta networks take a row with fewer drafts than the most that a row can have
for one with all of them. The rule here is that of vLLM's kernel for GPUs
(`_causal_conv1d_update_kernel` in `model_executor/layers/mamba/ops/causal_conv1d.py`).
"""

from typing import Any

import torch
from torch.nn import functional

from engine_adapter.vllm_engine import compat


def patch_convolutions() -> None:
    """Replaces the convolutions of the steps that verify drafts, in every kind of layer."""
    for module in (compat.mamba_mixer2, compat.short_conv):
        module.causal_conv1d_update = update_convolution
    # The method for CPUs has no rows with drafts; that for GPUs calls the module's functions.
    compat.short_conv.ShortConv.forward_native = compat.short_conv.ShortConv.forward_cuda
    compat.gdn_attention._spec_forward = verify_gated_delta


def update_convolution(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | bool | None = None,
    *,
    conv_state_indices: torch.Tensor,
    num_accepted_tokens: torch.Tensor | None = None,
    query_start_loc: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """The convolution of R rows' newest token and its drafts, with vLLM's parameters.

    A row's state are the W - 1 inputs before its first token of the last step, and that step's
    inputs. Of those it now begins after the last accepted one.

    Args:
        x: [T, D], the inputs, row by row.
        conv_state: [slots, D, S], S at least W - 2 and the most tokens of a row; is updated.
        weight: [D, W].
        bias: [D].
        activation: "silu", "swish" or true: SiLU; otherwise none.
        conv_state_indices: int [R] or [R, n], a row's slot; of several the first.
        num_accepted_tokens: int [R], how many tokens of the last step were accepted, at least 1;
            `None` in an engine that does not speculate.
        query_start_loc: int [R + 1], where each row begins in `x`.

    Returns:
        [T, D].
    """
    if num_accepted_tokens is None or query_start_loc is None:
        single: torch.Tensor = compat.causal_conv1d.causal_conv1d_update_cpu(
            x, conv_state, weight, bias, activation, conv_state_indices, query_start_loc, **options
        )
        return single
    slots = conv_state_indices.reshape(len(num_accepted_tokens), -1)[:, 0].long()
    starts, lengths = query_start_loc[:-1].long(), query_start_loc.diff().long()
    row = torch.repeat_interleave(lengths)
    column = torch.arange(len(x)) - starts[row]
    history, longest = weight.shape[1] - 1, int(lengths.max())
    # Each row's inputs from the first that its first output reads: [R, history + longest, D].
    inputs = x.new_zeros(len(slots), history + longest, x.shape[1], dtype=conv_state.dtype)
    kept = (num_accepted_tokens.long() - 1)[:, None] + torch.arange(history)
    inputs[:, :history] = conv_state.transpose(1, 2)[slots[:, None], kept]
    inputs[row, history + column] = x.to(conv_state.dtype)
    # A row with fewer tokens than the longest gets zeros behind its own, which are never read.
    conv_state[slots, :, : history + longest - 1] = inputs[:, 1:].transpose(1, 2)
    read = inputs.float()
    out = sum(read[:, j : j + longest] * weight[:, j].float() for j in range(history + 1))
    assert isinstance(out, torch.Tensor)
    if bias is not None:
        out = out + bias.float()
    if activation:
        out = functional.silu(out)
    return out[row, column].to(x.dtype)


def verify_gated_delta(
    layer: Any,
    metadata: Any,
    mixed_qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    conv_state: torch.Tensor,
    ssm_state: torch.Tensor,
    *_: int,
) -> torch.Tensor:
    """A gated delta layer over the rows that verify drafts, with vLLM's parameters.

    vLLM's recurrence, after the convolution above.

    Args:
        layer: vLLM's.
        metadata: its `GDNAttentionMetadata`.
        mixed_qkv: [T, D], the inputs of the convolution.
        b, a: [T, heads], the gates.
        conv_state: see `update_convolution`.
        ssm_state: [slots, heads, key size, value size].

    Returns:
        [T, heads, value size].
    """
    rows = metadata.num_spec_decodes
    slots = metadata.spec_state_indices_tensor[:rows].to(torch.int32).contiguous()
    accepted = metadata.num_accepted_tokens[:rows].to(torch.int32).contiguous()
    starts = metadata.spec_query_start_loc[: rows + 1].to(torch.int32).contiguous()
    mixed = update_convolution(
        mixed_qkv,
        conv_state,
        compat.gdn_attention._unpacked_conv_weight(layer),
        layer.conv1d.bias,
        layer.activation,
        conv_state_indices=slots,
        num_accepted_tokens=accepted,
        query_start_loc=starts,
    )
    query, key, value = (one.squeeze(0) for one in layer.rearrange_mixed_qkv(mixed))
    out: torch.Tensor = compat.custom_ops.fused_sigmoid_gating_delta_rule_update_spec_cpu(
        A_log=layer.A_log,
        dt_bias=layer.dt_bias,
        q=query,
        k=key,
        v=value,
        a=a,
        b=b,
        initial_state_source=ssm_state,
        spec_state_indices=slots,
        num_accepted_tokens=accepted,
        cu_seqlens=starts,
        use_qk_l2norm_in_kernel=True,
    )
    return out
