"""The loaded target, as heads see it."""

from typing import Any

import torch


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
