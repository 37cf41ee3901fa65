"""A head's tokens per decode step, computed without a server."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import LlamaForCausalLM

from demo.training.heads.teacher import teacher_batch
from demo.training.heads.training import Head
from demo.training.packing import Tokenized

BATCH = 8


@torch.inference_mode()
def tokens_per_step(
    target: LlamaForCausalLM, head: Head, chats: Sequence[Tokenized], k: int
) -> float:
    """Mean tokens per decode step when `head` drafts `k` tokens, without each answer's first token.

    Chains follow the target's text. This is exact because a step ends at its first rejected draft,
    and all drafts before it equal the text. A draft is accepted if it is the text's token, for
    greedy and for sampled answers, as in verification.

    Args:
        target: fp32, in evaluation mode.
        head: the drafting head.
        chats: answers of the target, with masked prompts.
        k: drafted tokens per step, at most `head.steps`.
    """
    steps = tokens = 0
    for first_chat in range(0, len(chats), BATCH):
        batch = teacher_batch(target, chats[first_chat : first_chat + BATCH], head.steps)
        agreed = torch.zeros(k, len(batch.rows), dtype=torch.bool)
        for step, logits in enumerate(head(batch)):
            if step < k:
                agreed[step, batch.chains[step]] = batch.hits(step, logits)
        accepted = agreed.int().cumprod(0).sum(0)
        for row in range(len(batch.ids)):
            lengths = accepted[batch.rows == row].tolist()
            start = 0
            while start < len(lengths) - 1:
                tokens += min(lengths[start] + 1, len(lengths) - 1 - start)
                start += lengths[start] + 1
                steps += 1
    return tokens / steps
