"""Random steps of model runner V2, as tensors that its kernels get."""

from dataclasses import dataclass
from typing import Any

import torch

REQUESTS, WIDTH, VOCABULARY, DRAFTS = 6, 48, 50, 3


@dataclass(frozen=True, slots=True)
class RandomStep:
    """A step of R rows among `REQUESTS` requests. Names are those of vLLM's tensors.

    A row computes a part of its prompt, its end, or a token after it with 0 to `DRAFTS` drafts.
    """

    idx_mapping: torch.Tensor
    query_start_loc: torch.Tensor
    cu_num_logits: torch.Tensor
    all_token_ids: torch.Tensor
    prompt_len: torch.Tensor
    prefill_len: torch.Tensor
    total_len: torch.Tensor
    num_computed_tokens: torch.Tensor
    draft_tokens: torch.Tensor

    @property
    def rows(self) -> int:
        """R."""
        return len(self.idx_mapping)

    @property
    def tokens(self) -> int:
        """T, the step's tokens."""
        return int(self.query_start_loc[-1])

    @property
    def logits(self) -> int:
        """L, the logits that the step needs."""
        return int(self.cu_num_logits[-1])

    @property
    def seq_lens(self) -> torch.Tensor:
        """Each row's length with the step's tokens."""
        return self.num_computed_tokens[self.idx_mapping.long()] + self.query_start_loc.diff()


def random_step(seed: int, drafts: bool = True) -> RandomStep:
    """A step; with `drafts` false it verifies none."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int, *shape: int) -> Any:
        values = torch.randint(low, high + 1, shape, generator=generator, dtype=torch.int32)
        return values if shape else int(values)

    rows = draw(1, REQUESTS)
    idx_mapping = torch.randperm(REQUESTS, generator=generator)[:rows]
    prefill = draw(1, 20, REQUESTS)
    total = prefill + draw(0, 8, REQUESTS)
    computed, lengths, logits = total - 1, [], []
    for request in idx_mapping.tolist():
        if draw(0, 1):  # a part of the prompt, perhaps its end
            total[request] = prefill[request]
            computed[request] = draw(0, int(prefill[request]) - 1)
            lengths.append(draw(1, int(prefill[request] - computed[request])))
            logits.append(1)
        else:
            total[request] += total[request] == prefill[request]
            computed[request] = total[request] - 1
            count = draw(0, DRAFTS) if drafts else 0
            lengths.append(1 + count)
            logits.append(1 + count)
    return RandomStep(
        idx_mapping.to(torch.int64 if seed % 2 else torch.int32),
        torch.tensor([0, *lengths]).cumsum(0).int(),
        torch.tensor([0, *logits]).cumsum(0).int(),
        draw(0, VOCABULARY - 1, REQUESTS, WIDTH),
        (prefill - draw(0, 2, REQUESTS)).clamp(min=1),
        prefill,
        total,
        computed,
        draw(0, VOCABULARY - 1, REQUESTS, DRAFTS).long(),
    )
