"""The convolutions of recurrent layers on a CPU, against one over all committed tokens."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from engine_adapter.vllm_engine.patches.convolutions import update_convolution

pytestmark = pytest.mark.needs_vllm

ROWS, SLOTS, D, W, DRAFTS = 3, 7, 6, 4, 5
STATE = W - 1 + DRAFTS
Drawn = torch.Generator


def direct(inputs: torch.Tensor, weight: torch.Tensor, bias: Any, activation: Any) -> torch.Tensor:
    """The outputs [T - W + 1, D] for the inputs [T, D]."""
    out = functional.conv1d(inputs.T[None], weight[:, None], bias, groups=D)[0].T
    return functional.silu(out) if activation else out


def run(
    *,
    too_far: int = 0,
    bias: bool = False,
    activation: str | None = None,
    state_first: bool = False,
    steps: int = 60,
) -> float:
    """Rows with up to five drafts, of which a random number is accepted; the largest mistake.

    Args:
        too_far: how many tokens more than the accepted ones the state counts.
        state_first: whether the state is stored as [slots, S, D], as vLLM does by default.
    """
    draw = torch.Generator().manual_seed(1)
    weight = torch.randn(D, W, generator=draw)
    added = torch.randn(D, generator=draw) if bias else None
    shape = (SLOTS, STATE, D) if state_first else (SLOTS, D, STATE)
    state = torch.full(shape, torch.nan)
    state = state.transpose(1, 2) if state_first else state
    committed = [torch.randn(W - 1 + row, D, generator=draw) for row in range(ROWS)]
    slots = torch.tensor([[5, 1], [2, 3], [6, 4]], dtype=torch.int32)
    for row in range(ROWS):
        state[slots[row, 0], :, : W - 1] = committed[row][-(W - 1) :].T
    accepted = torch.ones(ROWS, dtype=torch.int32)
    worst = 0.0
    for _ in range(steps):
        lengths = torch.randint(1, DRAFTS + 2, (ROWS,), generator=draw)
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        x = torch.randn(int(starts[-1]), D, generator=draw)
        out = update_convolution(
            x,
            state,
            weight,
            added,
            activation,
            conv_state_indices=slots,
            num_accepted_tokens=accepted,
            query_start_loc=starts.to(torch.int32),
            max_query_len=DRAFTS + 1,
        )
        assert out.shape == x.shape
        for row, own in enumerate(x.split(lengths.tolist())):
            inputs = torch.cat([committed[row][-(W - 1) :], own])
            wrong = out[starts[row] : starts[row + 1]] - direct(inputs, weight, added, activation)
            worst = max(worst, float(wrong.abs().max()))
            count = int(torch.randint(1, len(own) + 1, (), generator=draw))
            committed[row] = torch.cat([committed[row], own[:count]])
            accepted[row] = min(count + too_far, len(own))
    return worst


@pytest.mark.parametrize("state_first", [True, False])
@pytest.mark.parametrize(("bias", "activation"), [(False, None), (True, "silu")])
def test_a_state_follows_accepted_drafts(
    bias: bool, activation: str | None, state_first: bool
) -> None:
    assert run(bias=bias, activation=activation, state_first=state_first) < 1e-5


def test_a_state_that_counts_one_token_too_far_is_caught() -> None:
    assert run(too_far=1) > 0.1


def test_the_dtype_of_the_inputs_stays() -> None:
    x = torch.randn(2, D).to(torch.bfloat16)
    out = update_convolution(
        x,
        torch.zeros(SLOTS, D, STATE, dtype=torch.bfloat16),
        torch.randn(D, W).to(torch.bfloat16),
        conv_state_indices=torch.tensor([1, 2], dtype=torch.int32),
        num_accepted_tokens=torch.ones(2, dtype=torch.int32),
        query_start_loc=torch.tensor([0, 1, 2], dtype=torch.int32),
    )
    assert out.dtype == torch.bfloat16
