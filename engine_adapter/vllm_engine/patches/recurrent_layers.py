"""Recurrent layers on a CPU: their states follow accepted drafts only.

After a step that read drafts, a layer must continue from the state after the last accepted one. In
vLLM's code for CPUs, the convolution of Mamba 2 ignores how many were accepted, and its recurrence
takes one state for a row where there is one for each token; short convolutions have no rows with
drafts; and the convolution of a gated delta network takes a row with fewer drafts than a row can
have for one with all of them. The rules here are those of vLLM's kernels for GPUs
(`_causal_conv1d_update_kernel` and `_selective_scan_update_kernel` in
`model_executor/layers/mamba/ops`).
"""

from typing import Any

import torch
from torch.nn import functional

from engine_adapter.vllm_engine import compat


def patch_recurrent_layers() -> None:
    """Replaces what vLLM's layers call in steps that verify drafts."""
    compat.mamba_mixer2.causal_conv1d_update = update_convolution
    compat.mamba_mixer2.selective_state_update = update_states
    compat.short_conv.causal_conv1d_update = update_convolution
    compat.short_conv.ShortConv.forward_native = _serving(
        compat.short_conv.ShortConv.forward_native, compat.short_conv.ShortConv.forward_cuda
    )
    if compat.has_defect("gated_delta_short_rows"):
        compat.gdn_attention._spec_forward = verify_gated_delta


def _serving(native: Any, cuda: Any) -> Any:
    """The forward pass of a short convolution: of its methods, the one that has rows with drafts.

    It calls the functions of its module, which are those for CPUs here. In a dummy run it would
    leave the output as it was.
    """

    def forward(layer: Any, hidden_states: torch.Tensor, output: torch.Tensor) -> None:
        idle = compat.get_forward_context().attn_metadata is None
        (native if idle else cuda)(layer, hidden_states, output)

    return forward


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

    A row's state is the W - 1 inputs before its first token of the last step, and that step's
    inputs. Of those it now begins after the last accepted one.

    Args:
        x: [T, D], the inputs, row by row.
        conv_state: [slots, D, S], is updated; S is at least W - 2 plus the most tokens
            that a row has in a step.
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
        output: torch.Tensor = compat.causal_conv1d.causal_conv1d_update_cpu(
            x, conv_state, weight, bias, activation, conv_state_indices, query_start_loc, **options
        )
        return output
    slots = conv_state_indices.reshape(len(num_accepted_tokens), -1)[:, 0].long()
    starts, lengths = query_start_loc[:-1].long(), query_start_loc.diff().long()
    row = torch.repeat_interleave(lengths)
    column = torch.arange(len(x)) - starts[row]
    history, longest = weight.shape[1] - 1, int(lengths.max())
    # Each row's inputs from the first that its first output reads: [R, history + longest, D].
    inputs = x.new_zeros(len(slots), history + longest, x.shape[1], dtype=conv_state.dtype)
    history_columns = (num_accepted_tokens.long() - 1)[:, None] + torch.arange(history)
    inputs[:, :history] = conv_state.transpose(1, 2)[slots[:, None], history_columns]
    inputs[row, history + column] = x.to(conv_state.dtype)
    # A row with fewer tokens than the longest gets zeros behind its own, which are never read.
    conv_state[slots, :, : history + longest - 1] = inputs[:, 1:].transpose(1, 2)
    inputs_f32 = inputs.float()
    out = sum(inputs_f32[:, j : j + longest] * weight[:, j].float() for j in range(history + 1))
    assert isinstance(out, torch.Tensor)
    if bias is not None:
        out = out + bias.float()
    if activation:
        out = functional.silu(out)
    return out[row, column].to(x.dtype)


def update_states(
    state: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor,
    dt_bias: torch.Tensor,
    *,
    state_batch_indices: torch.Tensor,
    out: torch.Tensor,
    num_accepted_tokens: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    **options: Any,
) -> None:
    """The recurrence of Mamba 2 over R rows' newest token and its drafts, with vLLM's parameters.

    The state after a row's t-th token is left in its t-th slot. vLLM's kernel for CPUs takes only
    one slot for each row, so it is called for one token of each row at a time.

    Args:
        state: [slots, heads, head size, state size]; is updated.
        x, dt: [T, heads, head size], row by row.
        A, D, dt_bias: of the layer.
        B, C: [T, groups, state size].
        state_batch_indices: int [R, n], each row's slots.
        out: [T, ...], for the outputs.
        num_accepted_tokens, cu_seqlens: `num_accepted_tokens` and `query_start_loc` of
            `update_convolution`.
    """
    update = compat.ssu_dispatch.selective_state_update
    options.pop("dst_state_batch_indices", None)
    if num_accepted_tokens is None or cu_seqlens is None:
        slots = state_batch_indices
        options |= {"state_batch_indices": slots, "dst_state_batch_indices": slots}
        update(state, x, dt, A, B, C, D, dt_bias, out=out, **options)
        return
    slots = state_batch_indices.long()
    starts, lengths = cu_seqlens[:-1].long(), cu_seqlens.diff()
    begin = slots.gather(1, num_accepted_tokens.long()[:, None] - 1)[:, 0]
    for depth in range(int(lengths.max())):
        rows = torch.nonzero(lengths > depth)[:, 0]
        i, state_slots = starts[rows] + depth, slots[rows, depth]
        state[state_slots] = state[begin[rows]]
        outputs = out.new_empty(len(rows), *out.shape[1:])
        slot_column = state_slots[:, None].to(torch.int32)
        options |= {"state_batch_indices": slot_column, "dst_state_batch_indices": slot_column}
        update(state, x[i], dt[i], A, B[i], C[i], D, dt_bias, out=outputs, **options)
        out[i] = outputs
        begin = slots[:, depth]


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
    convolved = update_convolution(
        mixed_qkv,
        conv_state,
        compat.gdn_attention._unpacked_conv_weight(layer),
        layer.conv1d.bias,
        layer.activation,
        conv_state_indices=slots,
        num_accepted_tokens=accepted,
        query_start_loc=starts,
    )
    query, key, value = (part.squeeze(0) for part in layer.rearrange_mixed_qkv(convolved))
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
