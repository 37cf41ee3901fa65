"""Recurrent layers on a CPU, against a convolution and a recurrence over all committed tokens."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.recurrent_layers import update_convolution, update_states

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


# -- the recurrence of Mamba 2 ---------------------------------------------------------------

HEADS, SIZE, INNER = 4, 8, 16


class Recurrence:
    """One layer's weights, and its recurrence over one token."""

    def __init__(self, draw: torch.Generator) -> None:
        self.decay = -torch.rand(HEADS, generator=draw)
        self.direct, self.shift = (torch.randn(HEADS, generator=draw) for _ in range(2))

    def step(
        self, state: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, b: Any, c: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The state [HEADS, SIZE, INNER] after the token, and its output [HEADS, SIZE]."""
        time = functional.softplus(dt + self.shift)
        kept = state * torch.exp(time * self.decay)[:, None, None]
        state = kept + (time[:, None] * x)[:, :, None] * b
        return state, (state * c).sum(-1) + self.direct[:, None] * x

    def update(self, state: torch.Tensor, x: Any, dt: Any, b: Any, c: Any, **rows: Any) -> Any:
        """The patched function over the given rows: their outputs [T, HEADS, SIZE]."""
        out = torch.full_like(x, torch.nan)
        wide = (HEADS, SIZE)
        update_states(
            state,
            x,
            dt[:, :, None].expand(len(x), *wide),
            self.decay[:, None, None].expand(*wide, INNER),
            b,
            c,
            self.direct[:, None].expand(wide),
            self.shift[:, None].expand(wide),
            dt_softplus=True,
            out=out,
            **rows,
        )
        return out


def run_recurrence(monkeypatch: pytest.MonkeyPatch, *, too_far: int = 0, steps: int = 30) -> float:
    """As `run`, for the recurrence."""
    from vllm.config.mamba import MambaConfig

    backend = compat.ssu_dispatch.CPUSSUBackend(MambaConfig())
    monkeypatch.setattr(compat.ssu_dispatch, "_mamba_ssu_backend", backend)
    draw = torch.Generator().manual_seed(2)
    layer = Recurrence(draw)
    state = torch.full((1 + ROWS * (DRAFTS + 1), HEADS, SIZE, INNER), torch.nan)
    slots = 1 + torch.arange(ROWS * (DRAFTS + 1), dtype=torch.int32).view(ROWS, -1)
    committed = [torch.randn(HEADS, SIZE, INNER, generator=draw) for _ in range(ROWS)]
    state[slots[:, 0].long()] = torch.stack(committed)
    accepted = torch.ones(ROWS, dtype=torch.int32)
    worst = 0.0
    for _ in range(steps):
        lengths = torch.randint(1, DRAFTS + 2, (ROWS,), generator=draw)
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        total = int(starts[-1])
        x = torch.randn(total, HEADS, SIZE, generator=draw)
        dt = torch.randn(total, HEADS, generator=draw)
        b, c = (torch.randn(total, 1, INNER, generator=draw) for _ in range(2))
        rows = {"state_batch_indices": slots, "dst_state_batch_indices": slots}
        rows |= {"num_accepted_tokens": accepted, "cu_seqlens": starts.to(torch.int32)}
        out = layer.update(state, x, dt, b, c, **rows)
        for row in range(ROWS):
            own, length = committed[row], int(lengths[row])
            count = int(torch.randint(1, length + 1, (), generator=draw))
            for i in range(length):
                at = int(starts[row]) + i
                own, wanted = layer.step(own, x[at], dt[at], b[at], c[at])
                worst = max(worst, float((out[at] - wanted).abs().max()))
                if i == count - 1:
                    committed[row] = own
            accepted[row] = min(count + too_far, length)
    return worst


def test_the_recurrence_follows_accepted_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_recurrence(monkeypatch) < 1e-4


def test_a_recurrence_that_counts_one_token_too_far_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run_recurrence(monkeypatch, too_far=1) > 0.1
