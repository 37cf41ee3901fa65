"""How many tokens per decode step a head brings, without a server."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import LlamaForCausalLM

from demo.heads.lesson import new_lesson
from demo.heads.training import Head
from demo.packing import Tokenized

BATCH = 8


@torch.inference_mode()
def tokens_per_step(
    target: LlamaForCausalLM, head: Head, chats: Sequence[Tokenized], k: int
) -> float:
    """Mean tokens per decode step when `head` drafts `k` tokens, each answer's first left out.

    Chains follow the text that the target wrote, which is exact as far as drafts are accepted:
    the first rejected one ends the step. A draft is accepted if it is the text's token, greedy or
    sampled, as in verification.

    Args:
        target: fp32, in evaluation mode.
        head: drafts; `k` is at most its `steps`.
        chats: answers of the target; what is masked is the prompt.
        k: drafted tokens per step.
    """
    steps = tokens = 0
    for at in range(0, len(chats), BATCH):
        lesson = new_lesson(target, chats[at : at + BATCH], head.steps)
        agreed = torch.zeros(k, len(lesson.rows), dtype=torch.bool)
        for step, logits in enumerate(head(lesson)):
            if step < k:
                agreed[step, lesson.chains[step]] = lesson.hits(step, logits)
        accepted = agreed.int().cumprod(0).sum(0)
        for row in range(len(lesson.ids)):
            taken = accepted[lesson.rows == row].tolist()
            start = 0
            while start < len(taken) - 1:
                tokens += min(taken[start] + 1, len(taken) - 1 - start)
                start += taken[start] + 1
                steps += 1
    return tokens / steps
