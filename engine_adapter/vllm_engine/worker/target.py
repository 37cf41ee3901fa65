"""The target: the loaded model, as heads see it, and what it did in a step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.proposers.staging import to_device


class LoadedTarget:
    """A `Target` over vLLM's loaded model.

    Attributes:
        hidden_size, vocab_size: see `Target`.
        dtype, device: of its hidden states.
    """

    def __init__(self, model: Any, model_config: Any, device: torch.device) -> None:
        self._model = model
        self.hidden_size: int = model_config.get_hidden_size()
        self.vocab_size: int = model_config.get_vocab_size()
        self.dtype: torch.dtype = model_config.dtype
        self.device = device

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The target's language-model head: [N, H] -> logits [N, V]. Every rank must call it."""
        logits: torch.Tensor = self._model.compute_logits(hidden)
        return logits[:, : self.vocab_size]


@dataclass(frozen=True, slots=True)
class TargetStep:
    """The outcome of one step of the target over the B rows of the batch, as drafting needs it.

    Attributes:
        scheduled: request id -> number of tokens that the target read in this step.
        num_sampled: int64 [B], how many tokens each row emitted; 0 in the middle of its prompt.
        rows: int [R], the rows of the step.
        starts: int [R + 1], the index in `sample_places` of each one's first position, and S.
        sample_places: int [S], on the device, the place of every position that was sampled: for
            each row those of its drafts, then one more.
        hidden: [T, H], the final hidden states of all positions.
    """

    scheduled: Mapping[str, int]
    num_sampled: npt.NDArray[np.int64]
    rows: npt.NDArray[np.integer[Any]]
    starts: npt.NDArray[np.integer[Any]]
    sample_places: torch.Tensor
    hidden: torch.Tensor

    def last_hidden(self, rows: npt.NDArray[np.intp]) -> torch.Tensor:
        """The hidden state from which the newest token of each given row was sampled, [R, H].

        The rows must have emitted tokens.
        """
        first_samples = np.zeros(len(self.num_sampled), np.int64)
        first_samples[self.rows] = self.starts[:-1]
        place = first_samples[rows] + self.num_sampled[rows] - 1
        (newest,) = to_device(self.hidden.device, place)
        return self.hidden[self.sample_places[newest]]
