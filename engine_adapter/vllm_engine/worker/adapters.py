"""LoRA adapters, by the rows of logits that a step and its prompts have.

vLLM maps adapters to logits with one row for each request. A request with drafts has several, and
log probabilities of a prompt are read at every token of it: the step fails, or rows get the
adapters of others.

Imports vLLM's runner: only a worker's process may import it.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from engine_adapter.vllm_engine import compat

Inputs = tuple[tuple[int, ...], tuple[int, ...], set[Any]]
"""The adapters of the rows of logits and of the tokens, 0 for none, and the requests for them."""


class RowAdapters(compat.LoraState):
    """The adapters of the live requests.

    Attributes:
        drafts: request id -> the drafts that the next step verifies.
    """

    drafts: Mapping[str, Collection[int]] = {}

    def make_lora_inputs(
        self, req_ids: list[str], idx_mapping: Any, num_scheduled_tokens: Any
    ) -> Inputs:
        """vLLM's, with a row of logits for each draft, too."""
        _, tokens, requests = super().make_lora_inputs(req_ids, idx_mapping, num_scheduled_tokens)
        sizes = [len(self.drafts.get(req_id, ())) + 1 for req_id in req_ids]
        return tuple(self.lora_ids[idx_mapping].repeat(sizes).tolist()), tokens, requests


class PromptAdapters:
    """vLLM's `PromptLogprobsWorker`, with the adapter of each token.

    Args:
        worker: vLLM's.
        adapters: those of the requests.
        activate: vLLM's `_set_active_loras`, which takes `Inputs`.
    """

    def __init__(self, worker: Any, adapters: RowAdapters, activate: Callable[..., None]) -> None:
        self._worker, self._adapters, self._activate = worker, adapters, activate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def compute_prompt_logprobs(self, logits: Any, hidden: Any, batch: Any, *args: Any) -> Any:
        """As vLLM's: request id -> the log probabilities of its prompt."""
        logits = self._with_adapters(logits, hidden, batch)
        return self._worker.compute_prompt_logprobs(logits, hidden, batch, *args)

    def compute_prompt_token_id_logprobs(
        self, logits: Any, hidden: Any, batch: Any, *args: Any
    ) -> Any:
        """As vLLM's: request id -> the log probabilities of chosen tokens."""
        logits = self._with_adapters(logits, hidden, batch)
        return self._worker.compute_prompt_token_id_logprobs(logits, hidden, batch, *args)

    def _with_adapters(
        self, logits: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor, batch: Any
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """The target's logits of a part of `hidden`, the states of all tokens of a step."""

        def compute(part: torch.Tensor) -> torch.Tensor:
            # vLLM reads slices: where one begins, in rows.
            first_row = (part.storage_offset() - hidden.storage_offset()) // hidden.stride(0)
            _, tokens, requests = self._adapters.make_lora_inputs(
                batch.req_ids, batch.idx_mapping_np, batch.num_scheduled_tokens
            )
            self._activate(tokens[first_row : first_row + len(part)], tokens, requests)
            return logits(part)

        return compute
