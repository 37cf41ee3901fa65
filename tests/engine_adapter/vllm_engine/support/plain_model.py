"""A model of transformers in float32: a reference where stock vLLM has no exact one."""

from collections.abc import Sequence
from typing import Any

import torch

from tests.engine_adapter.vllm_engine.support.live import Prompt


class PlainModel:
    """Has the methods of `live.Stock` that tell whether a text is the model's."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    async def greedy(self, prompts: Sequence[Prompt], max_tokens: int) -> list[tuple[int, ...]]:
        """The greedy continuations, each of `max_tokens` tokens."""
        given: dict[str, Any] = {"do_sample": False, "eos_token_id": None}
        given |= {"max_new_tokens": max_tokens, "min_new_tokens": max_tokens}
        with torch.inference_mode():
            made = {p: self._model.generate(torch.tensor([p]), **given) for p in set(prompts)}
        return [tuple(made[p][0, len(p) :].tolist()) for p in prompts]

    async def gap(self, prompt: Prompt, tokens: tuple[int, ...]) -> float:
        """See `live.Stock.gap`."""
        with torch.inference_mode():
            logits = self._model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        scores = logits.log_softmax(-1)
        chosen = scores.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        return float((scores.amax(1) - chosen).max())
