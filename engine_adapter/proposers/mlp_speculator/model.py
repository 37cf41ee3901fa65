"""The model of an MLP speculator, which drafts for all rows of a batch at once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.checkpoint import Checkpoint
from engine_adapter.proposers.contract import Target
from engine_adapter.proposers.draft_table import DraftTable
from engine_adapter.proposers.mlp_speculator.layout import Layout
from engine_adapter.proposers.staging import fill, to_device

EPS = 1e-6


@dataclass(frozen=True, slots=True)
class _Step:
    """The weights of one step; see `Layout` for shapes."""

    emb: torch.Tensor
    proj: torch.Tensor
    ln_weight: torch.Tensor
    ln_bias: torch.Tensor
    head: torch.Tensor


class MlpSpeculator:
    """The loaded speculator. Has no state between steps, so it never lags.

    Args:
        checkpoint, layout: its weights, which are read here.
        target: gives the dtype and the device.
    """

    def __init__(self, checkpoint: Checkpoint, layout: Layout, target: Target) -> None:
        # Copied, so that the mapped file is not in use after loading.
        weights = {}
        for name, tensor in checkpoint.read(layout.needed).items():
            weights[name] = torch.empty(tensor.shape, dtype=target.dtype, device=target.device)
            fill(weights[name], tensor)
        parts = (layout.emb, layout.proj, layout.ln_weight, layout.ln_bias, layout.head)
        self._steps = [
            _Step(*(weights[name] for name in names)) for names in zip(*parts, strict=True)
        ]
        self._scale_input = layout.scale_input
        # Over all steps the squared weight of the first state decays to 1/2; tokens get the rest.
        self._state_weight = 0.5 ** (0.5 / layout.n_predict)
        self._emb_weight = math.sqrt((1 - self._state_weight**2) * layout.inner_dim / 2)
        self.weights_bytes = sum(tensor.nbytes for tensor in weights.values())

    @torch.inference_mode()
    def propose(self, batch: DraftBatch) -> Drafts:
        """Drafts from each row's newest token and the hidden state that it was sampled from."""
        # [R, H]
        state = batch.hidden
        # [R]
        (tokens,) = to_device(state.device, batch.token_ids[batch.rows, batch.num_tokens - 1])
        if self._scale_input:
            state = functional.rms_norm(state, state.shape[-1:], eps=EPS) / math.sqrt(2)
        drafts, probabilities = [], []
        for depth, step in enumerate(self._steps[: batch.k.max()]):
            # [R, D]
            state = torch.addmm(
                functional.embedding(tokens, step.emb),
                state,
                step.proj.T,
                beta=self._emb_weight,
                alpha=self._state_weight,
            )
            # An RMS norm with a bias, although the format calls it a layer norm.
            state = functional.rms_norm(state, state.shape[-1:], step.ln_weight, EPS)
            state = functional.gelu(state + step.ln_bias)
            tokens, q = batch.draw(functional.linear(state, step.head), depth)
            drafts.append(tokens)
            probabilities.append(q)
            if batch.is_done:
                break
        sampled = probabilities[0] is not None
        return batch.truncate(
            DraftTable(torch.stack(drafts, 1)).rows(),
            list(torch.stack(probabilities, 1)) if sampled else None,
        )

    def forget(self, request_ids: Sequence[str]) -> None:
        """Nothing to drop: it has no state."""
