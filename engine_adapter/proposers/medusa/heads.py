"""The model of Medusa heads. All heads and rows are computed at once; each head gives one token."""

from collections.abc import Sequence

import torch
from torch.nn import functional

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.checkpoint import Checkpoint, CheckpointError
from engine_adapter.proposers.contract import Target
from engine_adapter.proposers.draft_table import DraftTable
from engine_adapter.proposers.medusa.layout import Layout
from engine_adapter.proposers.staging import fill


class MedusaHeads:
    """The loaded heads. They have no state between steps, so they never lag.

    Args:
        checkpoint, layout: their weights, which are read here.
        target: gives the dtype, the device, and the output layer if the heads have none.

    Raises:
        CheckpointError: the token map has an id outside the target's vocabulary.
    """

    def __init__(self, checkpoint: Checkpoint, layout: Layout, target: Target) -> None:
        tensors = checkpoint.read(layout.needed)

        def stacked(names: Sequence[str]) -> torch.Tensor:
            shape = (len(names), *tensors[names[0]].shape)
            stack = torch.empty(shape, dtype=target.dtype, device=target.device)
            for head, name in zip(stack, names, strict=True):
                fill(head, tensors[name])
            return stack

        self._target = target
        self._num_heads = layout.num_heads
        # Of each layer: weights [heads, H, H], and biases [heads, 1, H] if there are any.
        self._weights = [stacked(names) for names in layout.weights]
        self._biases = [stacked(names).unsqueeze(1) for names in layout.biases]
        self._token_map: torch.Tensor | None = None
        if layout.token_map:
            self._token_map = tensors[layout.token_map].to(target.device, torch.int64, copy=True)
            if not 0 <= self._token_map.min() <= self._token_map.max() < target.vocab_size:
                raise CheckpointError(
                    f"{checkpoint.path_of(layout.token_map)}: {layout.token_map} must hold tokens "
                    f"in [0, {target.vocab_size})"
                )
            for name in layout.outputs:
                if len(tensors[name]) != len(self._token_map):
                    tensors[name] = tensors[name][tensors[layout.token_map].long()]
        # [heads, V', H], or [1, V', H] if shared.
        self._outputs = stacked(layout.outputs) if layout.outputs else None

    @property
    def weights_bytes(self) -> int:
        """See `Proposer.weights_bytes`. The target's output layer does not count."""
        tensors = [*self._weights, *self._biases, self._outputs, self._token_map]
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    @torch.inference_mode()
    def propose(self, batch: DraftBatch) -> Drafts:
        """Drafts with the first max(k) heads: head i drafts the token at depth i."""
        heads = min(int(batch.k.max()), self._num_heads)
        # [heads, R, H]
        states = batch.hidden.expand(heads, -1, -1)
        for layer, weight in enumerate(self._weights):
            maps = weight[:heads].transpose(1, 2)
            if self._biases:
                mapped = torch.baddbmm(self._biases[layer][:heads], states, maps)
            else:
                mapped = torch.bmm(states, maps)
            states = states + functional.silu(mapped)
        logits = self._logits(states)
        if batch.sampling is None:
            # [R, heads]
            tokens = logits.argmax(-1).view(heads, -1).T
            if self._token_map is not None:
                tokens = self._token_map[tokens]
            return batch.truncate(DraftTable(tokens).rows())
        by_head = self._expand_to_vocabulary(logits).view(heads, len(batch.rows), -1)
        tokens_by_head, probabilities = zip(*map(batch.draw, by_head, range(heads)), strict=True)
        sampled = probabilities[0] is not None
        return batch.truncate(
            DraftTable(torch.stack(tokens_by_head, 1)).rows(),
            list(torch.stack(probabilities, 1)) if sampled else None,
        )

    def forget(self, request_ids: Sequence[str]) -> None:
        """Nothing to drop: they have no state."""

    def _expand_to_vocabulary(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [..., V'] -> [..., V]: -inf for tokens that are not in the token map."""
        if self._token_map is None:
            return logits
        shape = (*logits.shape[:-1], self._target.vocab_size)
        expanded = logits.new_full(shape, float("-inf"))
        expanded[..., self._token_map] = logits
        return expanded

    def _logits(self, states: torch.Tensor) -> torch.Tensor:
        """Logits of states [heads, R, H]: [heads, R, V'] or [heads * R, V']."""
        if self._outputs is None:
            # A collective operation under tensor parallelism: every rank drafts for the same rows.
            logits: torch.Tensor = self._target.logits(states.flatten(0, 1))
            return logits
        if len(self._outputs) == 1:
            return functional.linear(states.flatten(0, 1), self._outputs[0])
        return torch.bmm(states, self._outputs[: len(states)].transpose(1, 2))
